//! Finding and killing processes through `/proc`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use sublet_protocol::units::Millis;

/// Longest chain of parents that is followed.
const ANCESTORS_MAX: usize = 1_024;
/// Milliseconds of a tick in `/proc`: Linux shows user space 100 a second on every machine we run on.
const TICK: u64 = 10;

/// Kills every living descendant of `root` (not `root` itself) and says how many there were.
///
/// One pass: a descendant that forks while it runs may leave a new one, so call it until it finds
/// none.
pub(crate) fn kill_descendants(root: Pid) -> usize {
    let parents = parents();
    let mut found = vec![root.as_raw()];
    let mut next = 0;
    while let Some(&parent) = found.get(next) {
        found.extend(parents.iter().filter(|(_, p)| **p == parent).map(|(child, _)| *child));
        next += 1;
    }
    for process in &found[1..] {
        // A process that has gone meanwhile is what was wanted.
        let _ = kill(Pid::from_raw(*process), Signal::SIGKILL);
    }
    found.len() - 1
}

/// Kills a process group, if there is one of that number.
pub(crate) fn kill_group(group: i32) {
    let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
}

/// Kills every process whose first environment carries `mark` (`NAME=value`) and says how many
/// there were. The last resort, for guests whose guard was killed.
pub(crate) fn kill_marked(mark: &str) -> usize {
    let marked = |process: &i32| {
        fs::read(format!("/proc/{process}/environ")).is_ok_and(|environ| {
            environ.split(|byte| *byte == 0).any(|pair| pair == mark.as_bytes())
        })
    };
    let own = i32::try_from(std::process::id()).expect("a process number fits in an i32");
    let found: Vec<i32> = processes().filter(|process| *process != own).filter(marked).collect();
    for process in &found {
        let _ = kill(Pid::from_raw(*process), Signal::SIGKILL);
    }
    found.len()
}

/// Whether `process` is `ancestor` or was started by it or a descendant, as far as parents are
/// known.
pub(crate) fn descends_from(process: i32, ancestor: i32) -> bool {
    let mut at = Some(process);
    // A chain of parents ends at 1; a process that changes while it is read cannot make a loop
    // longer than this.
    for _ in 0..ANCESTORS_MAX {
        match at {
            Some(one) if one == ancestor => return true,
            Some(one) if one > 1 => at = living_parent(one),
            Some(_) | None => return false,
        }
    }
    false
}

/// CPU time that everything below `root` has used, what has ended below it included; nothing if `root`
/// is gone.
pub(crate) fn cpu_below(root: i32) -> Option<Millis> {
    let own = Times::of(root)?;
    let parents = parents();
    let mut found = vec![root];
    let mut ticks = own.of_reaped;
    let mut next = 0;
    while let Some(&parent) = found.get(next) {
        let children = parents.iter().filter(|(_, p)| **p == parent).map(|(child, _)| *child);
        for child in children {
            found.push(child);
            // One that ends just now is counted by whoever reaps it.
            let times = Times::of(child).unwrap_or_default();
            ticks = ticks.saturating_add(times.own).saturating_add(times.of_reaped);
        }
        next += 1;
    }
    Some(Millis::new(ticks.saturating_mul(TICK)))
}

/// CPU time of a process in the system's ticks.
#[derive(Debug, Clone, Copy, Default)]
struct Times {
    own: u64,
    /// Of children that ended and were waited for.
    of_reaped: u64,
}

impl Times {
    /// From `/proc/<process>/stat`: after `pid (any name)` the 12th to 15th fields are user and system
    /// time, of the process itself and of its reaped children (proc_pid_stat(5)).
    fn of(process: i32) -> Option<Times> {
        let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
        let (_, rest) = stat.rsplit_once(')')?;
        let mut fields = rest.split_whitespace().skip(11);
        let mut next = || fields.next()?.parse::<u64>().ok();
        let [user, system, reaped_user, reaped_system] = [next()?, next()?, next()?, next()?];
        let own = user.saturating_add(system);
        Some(Times { own, of_reaped: reaped_user.saturating_add(reaped_system) })
    }
}

/// Living process → its parent; zombies are left out, for they only wait to be reaped.
fn parents() -> BTreeMap<i32, i32> {
    processes().filter_map(|process| Some((process, living_parent(process)?))).collect()
}

fn processes() -> impl Iterator<Item = i32> {
    let entries = fs::read_dir(Path::new("/proc")).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// The parent in `/proc/<process>/stat`: `pid (any name) state ppid …`.
fn living_parent(process: i32) -> Option<i32> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    let state = fields.next()?;
    if state == "Z" || state == "X" {
        return None;
    }
    fields.next()?.parse().ok()
}
