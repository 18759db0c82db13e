//! What only the process driver does: real environments, folders, output.

use std::time::{Duration, Instant};

use sublet_agent::driver::process::ProcessDriver;
use sublet_agent::driver::{Driver, Exit, Guest, GuestKey, Report, StartFailure};
use sublet_agent::guard::boottime_now;
use sublet_protocol::agent::Stream;
use sublet_protocol::units::Millis;

use crate::driver::{guest, process_driver};
use crate::support::{marked, unique_mark, wait_until};

fn later() -> Millis {
    boottime_now().saturating_add(Millis::new(600_000))
}

/// Everything a guest reports until it is clean or has not started.
#[track_caller]
fn reports_of(driver: &mut ProcessDriver, guest: Guest) -> Vec<Report> {
    driver.start(boottime_now(), guest);
    reports_to_the_end(driver)
}

#[track_caller]
fn reports_to_the_end(driver: &mut ProcessDriver) -> Vec<Report> {
    let start = Instant::now();
    let mut all = Vec::new();
    loop {
        all.extend(driver.poll(boottime_now()));
        match all.last() {
            Some(Report::Clean(_) | Report::NotStarted(..)) => return all,
            _ => assert!(start.elapsed() < Duration::from_secs(20), "only {all:?}"),
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn printed(reports: &[Report], wanted: Stream) -> String {
    let bytes = reports.iter().filter_map(|report| match report {
        Report::Output { stream, bytes, .. } if *stream == wanted => Some(bytes.clone()),
        _ => None,
    });
    String::from_utf8(bytes.flatten().collect()).unwrap()
}

#[test]
fn what_a_guest_prints_is_reported_before_its_end_with_offsets() {
    let (mut driver, _scratch) = process_driver();
    let script = "echo hi; echo oops >&2; sleep 0.2; echo there; exit 4";
    let reports = reports_of(&mut driver, guest(1, &["sh", "-c", script], later()));
    assert_eq!(printed(&reports, Stream::Stdout), "hi\nthere\n");
    assert_eq!(printed(&reports, Stream::Stderr), "oops\n");
    let second = reports.iter().find_map(|report| match report {
        Report::Output { offset: offset @ 1.., bytes, .. } => Some((*offset, bytes.as_slice())),
        _ => None,
    });
    assert_eq!(second, Some((3, &b"there\n"[..])));
    let key = guest(1, &[], later()).key;
    assert_eq!(
        reports[reports.len() - 2..],
        [Report::Exited(key, Exit::Code(4)), Report::Clean(key)]
    );
}

#[test]
fn more_output_than_can_wait_is_neither_lost_nor_kept_in_memory() {
    let (mut driver, _scratch) = process_driver();
    let script = "i=0; while [ $i -lt 400 ]; do head -c 20000 /dev/zero; i=$((i+1)); done";
    driver.start(boottime_now(), guest(1, &["sh", "-c", script], later()));
    std::thread::sleep(Duration::from_millis(300));
    let reports = reports_to_the_end(&mut driver);
    assert_eq!(printed(&reports, Stream::Stdout).len(), 8_000_000);
}

#[test]
fn what_waits_in_the_pipe_when_a_guest_ends_comes_before_its_end() {
    let (mut driver, scratch) = process_driver();
    let done = scratch.path().join("done");
    // Each line is a report of its own: more of them than can wait to be polled.
    let script =
        "i=0; while [ $i -lt 320 ]; do echo x; sleep 0.001; i=$((i+1)); done; touch \"$0\"";
    let argv = ["sh", "-c", script, done.to_str().unwrap()];
    driver.start(boottime_now(), guest(1, &argv, later()));
    wait_until("it has printed all", || done.exists());
    std::thread::sleep(Duration::from_millis(300));
    let reports = reports_to_the_end(&mut driver);
    assert_eq!(printed(&reports, Stream::Stdout).len(), 640);
    let is_end = |report: &Report| matches!(report, Report::Exited(..));
    assert_eq!(reports.iter().position(is_end), Some(reports.len() - 2));
}

#[test]
fn the_environment_is_a_short_list_and_what_the_lease_says() {
    let (mut driver, _scratch) = process_driver();
    let mut wanted = guest(5, &["env"], later());
    wanted.workload.as_mut().unwrap().env = vec![("EPOCHS".into(), "3 && rm".into())];
    let lease = wanted.lease.to_string();
    let reports = reports_of(&mut driver, wanted);
    let printed = printed(&reports, Stream::Stdout);
    let mut names: Vec<&str> =
        printed.lines().map(|line| line.split_once('=').unwrap().0).collect();
    names.retain(|name| !["LANG", "LC_ALL", "TZ"].contains(name));
    names.sort_unstable();
    let expected = [
        "CUDA_VISIBLE_DEVICES",
        "EPOCHS",
        "HOME",
        "PATH",
        "SUBLET_DEADLINE",
        "SUBLET_LEASE",
        "SUBLET_SCRATCH",
        "TMPDIR",
    ];
    assert_eq!(names, expected);
    assert!(printed.contains("CUDA_VISIBLE_DEVICES=GPU-00000000-0000-0000-0000-000000000001\n"));
    assert!(printed.contains(&format!("SUBLET_LEASE={lease}\n")));
    assert!(printed.contains("EPOCHS=3 && rm\n"));
}

#[test]
fn arguments_never_meet_a_shell() {
    let (mut driver, _scratch) = process_driver();
    let reports = reports_of(&mut driver, guest(1, &["echo", "$HOME; echo x", "*"], later()));
    assert_eq!(printed(&reports, Stream::Stdout), "$HOME; echo x *\n");
}

#[test]
fn the_folder_is_private_and_erased_with_what_was_written() {
    let (mut driver, scratch) = process_driver();
    let script = "pwd; stat -c %a .; echo secret > kept; mkdir -p a/b; touch a/b/c";
    let reports = reports_of(&mut driver, guest(1, &["sh", "-c", script], later()));
    let printed = printed(&reports, Stream::Stdout);
    let (folder, mode) = printed.trim_end().split_once('\n').unwrap();
    assert!(folder.starts_with(scratch.path().to_str().unwrap()), "{folder}");
    assert_eq!(mode, "700");
    assert!(!std::path::Path::new(folder).exists());
}

#[test]
fn a_workload_may_not_set_what_the_lease_says_or_a_bad_name() {
    let (mut driver, scratch) = process_driver();
    let names = ["CUDA_VISIBLE_DEVICES", "SUBLET_LEASE", "A=B", "", "1A", "a b"];
    for (counter, name) in (1..).zip(names) {
        let mut wanted = guest(counter, &["true"], later());
        wanted.workload.as_mut().unwrap().env = vec![(name.to_owned(), "x".to_owned())];
        let key = wanted.key;
        let failure = StartFailure::Variable { name: name.to_owned() };
        assert_eq!(reports_of(&mut driver, wanted), [Report::NotStarted(key, failure)]);
    }
    let nothing = guest(9, &[], later());
    let key = nothing.key;
    let expected = [Report::NotStarted(key, StartFailure::NoProgram)];
    assert_eq!(reports_of(&mut driver, nothing), expected);
    assert!(!scratch.path().join("guests").exists(), "a folder was made");
}

#[test]
fn a_file_that_is_no_program_is_refused_and_its_folder_is_gone() {
    let (mut driver, scratch) = process_driver();
    let reports = reports_of(&mut driver, guest(1, &["/etc/passwd"], later()));
    let key = guest(1, &[], later()).key;
    let failure = StartFailure::ProgramRefused { program: "/etc/passwd".to_owned(), errno: 13 };
    assert_eq!(reports, [Report::NotStarted(key, failure)]);
    let left = std::fs::read_dir(scratch.path().join("guests")).unwrap().count();
    assert_eq!(left, 0);
}

fn marked_guest(mark: &str) -> Guest {
    let script = "trap '' TERM; (setsid sleep 1000 &); sleep 1000";
    let mut wanted = guest(1, &["sh", "-c", script], later());
    wanted.workload.as_mut().unwrap().env = vec![("TEST_MARK".to_owned(), mark.to_owned())];
    wanted
}

#[test]
fn a_guest_whose_guard_was_killed_is_ended_by_the_driver() {
    let (mut driver, _scratch) = process_driver();
    let mark = unique_mark();
    let wanted = marked_guest(&mark);
    let key: GuestKey = wanted.key;
    driver.start(boottime_now(), wanted);
    wait_until("it runs", || marked("TEST_MARK", &mark).len() >= 3);
    let guest_process = marked("TEST_MARK", &mark)[0];
    let guard = parent_named_guard(guest_process);
    std::process::Command::new("kill").args(["-9", &guard.to_string()]).status().unwrap();
    let reports = reports_to_the_end(&mut driver);
    assert_eq!(reports[1..], [Report::Exited(key, Exit::Signal(9)), Report::Clean(key)]);
    assert!(marked("TEST_MARK", &mark).is_empty());
}

/// Walks up to the process that was started with `__guard`.
fn parent_named_guard(mut process: u32) -> u32 {
    loop {
        let command = std::fs::read(format!("/proc/{process}/cmdline")).unwrap();
        if command.split(|byte| *byte == 0).any(|word| word == b"__guard") {
            return process;
        }
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
        let (_, rest) = stat.rsplit_once(')').unwrap();
        process = rest.split_whitespace().nth(1).unwrap().parse().unwrap();
    }
}

#[test]
fn when_the_driver_goes_its_guests_go() {
    let (mut driver, _scratch) = process_driver();
    let mark = unique_mark();
    driver.start(boottime_now(), marked_guest(&mark));
    wait_until("it runs", || marked("TEST_MARK", &mark).len() >= 3);
    drop(driver);
    wait_until("all are gone", || marked("TEST_MARK", &mark).is_empty());
}

#[test]
fn what_an_earlier_start_left_is_cleared() {
    let (mut driver, scratch) = process_driver();
    assert_eq!(driver.clear(), Ok(()), "nothing was ever there");
    let left = scratch.path().join("guests").join("0.7-GPU-x");
    std::fs::create_dir_all(left.join("deep")).unwrap();
    let mut guest = std::process::Command::new("sleep");
    let mut guest = guest.arg("1000").env("SUBLET_SCRATCH", &left).spawn().unwrap();
    assert_eq!(driver.clear(), Ok(()));
    assert!(!left.exists());
    assert!(!guest.wait().unwrap().success());
}

#[test]
fn a_member_without_a_workload_is_held_until_its_deadline_or_a_signal() {
    let (mut driver, _scratch) = process_driver();
    let now = boottime_now();
    let mut attached = guest(1, &[], now.saturating_add(Millis::new(50)));
    attached.workload = None;
    let key = attached.key;
    driver.start(now, attached);
    assert_eq!(driver.poll(now), [Report::Started(key)]);
    let due = driver.next_report().unwrap();
    assert_eq!(due, now.saturating_add(Millis::new(50)));
    let end = [Report::Exited(key, Exit::Signal(9)), Report::Clean(key)];
    assert_eq!(driver.poll(due), end);
}

#[test]
fn the_cpu_time_of_a_guest_counts_its_children_those_that_ended_too_and_stands_still_with_it() {
    let (mut driver, scratch) = process_driver();
    let done = scratch.path().join("counted");
    let burn = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done";
    let script = format!("sh -c '{burn}'; (sh -c '{burn}' &); sleep 0.5; touch \"$0\"; sleep 600");
    let argv = ["sh", "-c", &script, done.to_str().unwrap()];
    let guest = guest(1, &argv, later());
    let key = guest.key;
    assert_eq!(driver.cpu_used(boottime_now(), key), None, "there is no such guest");
    driver.start(boottime_now(), guest);
    wait_until("it has counted", || done.exists());
    let mut last = Millis::ZERO;
    wait_until("nothing counts any longer", || {
        let used = driver.cpu_used(boottime_now(), key).unwrap();
        assert!(used >= last, "{used} after {last}");
        std::mem::replace(&mut last, used) == used
    });
    assert!(last >= Millis::new(20), "two counts took {last} ms");
    driver.kill(boottime_now(), key);
    reports_to_the_end(&mut driver);
    assert_eq!(driver.cpu_used(boottime_now(), key), None);
}
