//! How many instructions the matcher's indexes take, counted by callgrind, and how many bytes.
//!
//! Run it with `cargo bench -p sublet-simulations --bench matcher_counts`; it needs `valgrind`. It
//! starts itself once for each case under `valgrind --tool=callgrind`, which counts what happens in
//! the functions named `measured_…` only. Counts do not depend on the load of the machine.
#![allow(clippy::print_stdout, reason = "a measurement is told on the terminal")]

mod matcher;

use std::process::Command;

use anyhow::{Context, bail, ensure};
use matcher::quotas::Lending;
use matcher::{Arrival, Cell, Numbers, Size};
use sublet_core::matching::index::{Leases, PoolNo, Standing};
use sublet_protocol::ids::LeaseId;
use sublet_protocol::units::Timestamp;

const CYCLES: u32 = 10_000;
const TAKEBACKS: u32 = 100;
const LEASES: u32 = 100_000;
/// The GPUs that an owner takes back at once, in thousandths.
const TAKEN_BACK: u32 = 64_000;
const NOW: Timestamp = Timestamp::new(1_700_000_000_000);

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["measure", what, gpus, waiting, tenants, lending] => {
            let lending = match lending {
                "none" => Lending::None,
                "rare" => Lending::Rare,
                _everything => Lending::Everything,
            };
            let (gpus, waiting, tenants) = (gpus.parse()?, waiting.parse()?, tenants.parse()?);
            let size = Size { gpus, waiting, tenants, lending };
            match what {
                "cycle" => measure_cycles(size),
                // What it takes until the cycles begin.
                _fill => {
                    println!("{}", Cell::new(size, CYCLES).1.len());
                    Ok(())
                }
            }
        }
        ["measure", "takeback", sizes] => measure_takebacks(sizes == "mixed"),
        // What cargo adds (`--bench`) is of no interest.
        _ => report(),
    }
}

fn measure_cycles(size: Size) -> anyhow::Result<()> {
    let (mut cell, arrivals) = Cell::new(size, CYCLES);
    cell.reserve(arrivals.len());
    let granted = measured_cycles(&mut cell, &arrivals);
    // Without a grant in each cycle something else was measured than is said.
    ensure!(granted == CYCLES, "{granted} of {CYCLES} cycles granted something");
    println!("{granted}");
    Ok(())
}

#[inline(never)]
fn measured_cycles(cell: &mut Cell, arrivals: &[Arrival]) -> u32 {
    arrivals.iter().map(|arrival| u32::from(cell.cycle(arrival).is_some())).sum()
}

/// Running leases of 16 owners and models, in three tiers.
fn leases(is_mixed: bool) -> Leases {
    let (mut leases, mut numbers) = (Leases::new(1, NOW), Numbers(0x5eed));
    for number in 0..LEASES {
        let gpus = if is_mixed { [1, 1, 1, 1, 2, 2, 4, 8][at(numbers.below(8))] } else { 1 };
        let standing = Standing {
            pool: PoolNo(numbers.below(48)),
            rank: u64::from(numbers.below(1_000_000)),
            gpu: gpus * 1_000,
            guarded_until: NOW,
        };
        leases.put(LeaseId::new(u128::from(number) << 40 | u128::from(numbers.0)), standing);
    }
    leases
}

fn at(number: u32) -> usize {
    usize::try_from(number).expect("a u32 fits")
}

fn measure_takebacks(is_mixed: bool) -> anyhow::Result<()> {
    let mut leases = leases(is_mixed);
    let mut numbers = Numbers(7);
    let pools: Vec<u32> = (0..TAKEBACKS).map(|_| numbers.below(16)).collect();
    let mut victims = Vec::with_capacity(128);
    let mut count = 0;
    for pool in pools {
        count += measured_takeback(&mut leases, pool, &mut victims);
        ensure!(victims.iter().map(|(_, gpu)| gpu).sum::<u32>() >= TAKEN_BACK, "too few victims");
    }
    println!("{count}");
    Ok(())
}

/// Finds who gives way, lowest tier first, gives back whom it does not need, and lets them go.
#[inline(never)]
fn measured_takeback(leases: &mut Leases, pool: u32, victims: &mut Vec<(LeaseId, u32)>) -> usize {
    victims.clear();
    let mut sum = 0;
    for tier in 0..3 {
        for victim in leases.giving_way(PoolNo(pool * 3 + tier)) {
            if sum >= TAKEN_BACK {
                break;
            }
            sum += victim.1;
            victims.push(victim);
        }
    }
    for place in (0..victims.len()).rev() {
        if sum - victims[place].1 >= TAKEN_BACK {
            sum -= victims.remove(place).1;
        }
    }
    for (victim, _) in victims.iter() {
        leases.remove(*victim);
    }
    victims.len()
}

/// All that is measured.
const ALL: &[&str] = &["measured_"];
/// What takes its part of a cycle besides the queue and the shelves: whether there is room, a grant
/// and an end in the tree, where tenants stand, and their order.
const QUOTAS: [&str; 5] =
    ["Tree*has_room", "Tree*take_at", "Tree*give_back_at", "standing_of", "Tournament*set"];

/// Runs one case under callgrind: the instructions in functions with such names, and what it printed.
fn count(case: &[&str], inside: &[&str]) -> anyhow::Result<(u64, u64)> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("counts");
    let mut valgrind = Command::new("valgrind");
    valgrind.arg("--tool=callgrind");
    valgrind.args(inside.iter().map(|name| format!("--toggle-collect=*{name}*")));
    valgrind.arg(format!("--callgrind-out-file={}", file.display()));
    valgrind.arg(std::env::current_exe()?).arg("measure").args(case);
    let output = valgrind.output().context("valgrind did not start: is it installed?")?;
    if !output.status.success() {
        bail!("{case:?} failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    let text = std::fs::read_to_string(&file).context("callgrind wrote no counts")?;
    let totals = text.lines().find_map(|line| line.strip_prefix("totals: "));
    let total = totals.context("callgrind counted nothing")?.trim().parse()?;
    Ok((total, String::from_utf8_lossy(&output.stdout).trim().parse()?))
}

/// What a cycle takes, and prints it.
fn cycle(gpus: u32, waiting: u32, tenants: u32) -> anyhow::Result<u64> {
    let size = [gpus, waiting, tenants].map(|number| number.to_string());
    let (total, cycles) = count(&["cycle", &size[0], &size[1], &size[2], "rare"], ALL)?;
    println!("{gpus:>8} {waiting:>9} {tenants:>8} {:>13}", total / cycles);
    Ok(total / cycles)
}

/// What of a cycle quotas take, where so much is lent, and prints it.
fn parts(lending: &str) -> anyhow::Result<()> {
    let size = ["10000", "100000", "1024", lending];
    let case = |what| [what, size[0], size[1], size[2], size[3]];
    let (total, cycles) = count(&case("cycle"), ALL)?;
    print!("{lending:>12} {:>13}", total / cycles);
    for part in QUOTAS {
        let ((with, _), (before, _)) =
            (count(&case("cycle"), &[part])?, count(&case("fill"), &[part])?);
        print!(" {:>8}", (with - before) / cycles);
    }
    println!();
    Ok(())
}

fn report() -> anyhow::Result<()> {
    println!("Instructions per cycle (arrive, choose, quota, release), mean of {CYCLES} cycles");
    println!("    GPUs   waiting  tenants  instructions");
    let mut cycles = Vec::new();
    for gpus in [1_000, 10_000, 100_000] {
        for waiting in [100_000, 1_000_000] {
            cycles.push(cycle(gpus, waiting, 1_024)?);
        }
    }
    let few = cycle(100_000, 100_000, 100)?;
    let many = cycle(100_000, 100_000, 10_000)?;
    println!("\nOf these, by what is lent (10,000 GPUs, 100,000 waiting)");
    println!("     lending  instructions     room    grant      end   stands    order");
    for lending in ["none", "rare", "everything"] {
        parts(lending)?;
    }
    println!("\nGrowth, in thousandths");
    println!("  100 times the GPUs      {}", cycles[4] * 1_000 / cycles[0]);
    println!("  10 times the queue      {}", cycles[5] * 1_000 / cycles[4]);
    println!("  100 times the tenants   {}", many * 1_000 / few);
    println!("\nInstructions to take back 64 GPUs among {LEASES} leases, mean of {TAKEBACKS}");
    for sizes in ["single", "mixed"] {
        let (total, victims) = count(&["takeback", sizes], ALL)?;
        let each = u64::from(TAKEBACKS);
        let allowed = 2_000 + 300 * victims / each;
        println!(
            "  {sizes:>6}: {} for {} victims (target {allowed})",
            total / each,
            victims / each
        );
    }
    println!("\nBytes of the index structures");
    for waiting in [100_000, 1_000_000] {
        let size = Size { gpus: 1_000, waiting, tenants: 1_024, lending: Lending::Rare };
        let (cell, _) = Cell::new(size, 0);
        println!(
            "  per waiting request, {waiting:>9} waiting: {}",
            cell.queue.bytes() / cell.queue.len()
        );
    }
    for count in [10_000, 100_000] {
        let shelves = matcher::shelves(count);
        println!("  per GPU, {count:>9} on offer: {}", shelves.bytes() / shelves.len());
    }
    let leases = leases(true);
    println!("  per lease, {LEASES:>9} running: {}", leases.bytes() / leases.len());
    Ok(())
}
