//! The matcher's cycle by its indexes against the same cycle by a scan of everything: wall time, in
//! one run, taken in turns.
//!
//! Run it with `cargo bench -p sublet-simulations --bench matcher_wall`. The ratio is worth something;
//! the times are those of this machine under the load of the moment.
#![allow(clippy::print_stdout, reason = "a measurement is told on the terminal")]

mod matcher;
#[path = "matcher/scan.rs"]
mod scan;

use std::cell::RefCell;
use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::Criterion;
use matcher::quotas::Lending;
use matcher::{Arrival, Cell, Size};
use scan::Scan;

const ROUNDS: usize = 5;
const SIZE: Size = Size { gpus: 100_000, waiting: 100_000, tenants: 1_024, lending: Lending::Rare };
/// Cycles on one copy of the cell; a measurement of more takes a fresh copy.
const CYCLES: u32 = 10_000;

fn by_index(cell: &Cell, arrivals: &[Arrival], times: u64) -> Duration {
    let (mut spent, mut left) = (Duration::ZERO, usize::try_from(times).expect("a usize"));
    while left > 0 {
        let (mut cell, count) = (cell.clone(), left.min(arrivals.len()));
        cell.reserve(count);
        let started = Instant::now();
        for arrival in &arrivals[..count] {
            black_box(cell.cycle(arrival));
        }
        spent += started.elapsed();
        left -= count;
    }
    spent
}

fn by_scan(arrivals: &[Arrival], times: u64) -> Duration {
    let mut scan = Scan::new(SIZE);
    let started = Instant::now();
    for arrival in arrivals.iter().cycle().take(usize::try_from(times).expect("a usize")) {
        black_box(scan.cycle(arrival));
    }
    started.elapsed()
}

/// The median of what was measured, in nanoseconds per cycle.
fn median(measured: &RefCell<Vec<u128>>) -> u128 {
    let mut sorted = measured.borrow().clone();
    sorted.sort_unstable();
    sorted.get(sorted.len() / 2).copied().unwrap_or(0)
}

fn main() {
    let mut criterion = Criterion::default()
        .configure_from_args()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2));
    let (cell, arrivals) = Cell::new(SIZE, CYCLES);
    let (index, scan) = (RefCell::new(Vec::new()), RefCell::new(Vec::new()));
    let note = |measured: &RefCell<Vec<u128>>, times: u64, spent: Duration| {
        measured.borrow_mut().push(spent.as_nanos() / u128::from(times.max(1)));
        spent
    };
    for round in 1..=ROUNDS {
        criterion.bench_function(&format!("cycle by index, round {round}"), |bencher| {
            bencher.iter_custom(|times| note(&index, times, by_index(&cell, &arrivals, times)));
        });
        criterion.bench_function(&format!("cycle by scan, round {round}"), |bencher| {
            bencher.iter_custom(|times| note(&scan, times, by_scan(&arrivals, times)));
        });
    }
    criterion.final_summary();
    let (index, scan) = (median(&index), median(&scan));
    println!("cycle by index {index} ns, by scan {scan} ns: {} times", scan / index.max(1));
}
