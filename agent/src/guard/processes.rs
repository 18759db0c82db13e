//! Finding and killing processes through `/proc`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

/// Longest chain of parents that is followed.
const ANCESTORS_MAX: usize = 1_024;

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
