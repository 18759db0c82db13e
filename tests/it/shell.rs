//! How the command line behaves in a shell: pipes, exit codes, help, no server.

use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use crate::support::{Dev, Done, Home, wait_for};

#[test]
fn without_a_server_the_exit_code_is_75_and_says_what_to_do() {
    let home = Home::new();
    for arguments in [&["offers"][..], &["status"], &["lease", "list"]] {
        let done = home.sublet(arguments);
        assert_eq!(done.code, 75, "{done:#?}");
        assert!(done.err.contains("sublet dev") && done.err.contains("SUBLET_SERVER"), "{done:#?}");
        assert_eq!(done.out, "");
    }
    // A port that nobody listens on: bound, known, and closed again.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let server = format!("http://127.0.0.1:{port}");
    let done = home.sublet(&["--server", &server, "offers"]);
    assert_eq!(done.code, 75, "{done:#?}");
    assert!(done.err.contains(&format!("no server answers at {server}")), "{done:#?}");
}

#[test]
fn flags_go_before_the_environment_and_that_before_the_profile() {
    let home = Home::new();
    let dev = Dev::start(&home, &[]);
    let dead = "http://127.0.0.1:9";
    let run = |flags: &[&str], env: Option<&str>| {
        let mut command = home.command(&[flags, &["status"]].concat());
        command.envs(env.map(|server| ("SUBLET_SERVER", server)));
        command.output().unwrap().status.code()
    };
    assert_eq!(run(&[], None), Some(0));
    assert_eq!(run(&[], Some(dead)), Some(75));
    assert_eq!(run(&["--server", &dev.server], Some(dead)), Some(0));
    assert_eq!(run(&["--server", dead], Some(&dev.server)), Some(75));
    assert_eq!(run(&["--profile", "devv"], None), Some(3));
    let mode = std::fs::metadata(home.profile()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn a_guest_is_ended_when_nobody_reads_it_any_longer() {
    let home = Home::new();
    let dev = Dev::start(&home, &[]);
    dev.all_on_offer(&home);
    let guest = "while true; do echo again; sleep 0.1; done";
    let sublet = env!("CARGO_BIN_EXE_sublet");
    let script = format!("{sublet} lease run -- sh -c '{guest}' | head -1");
    let mut command = Command::new("bash");
    command.args(["-c", &script]).stdin(Stdio::null());
    command.env("XDG_CONFIG_HOME", home.path().join("config"));
    let done = Done::of(&["lease run"], &command.output().unwrap());
    assert_eq!(done.out, "again\n", "{done:#?}");
    wait_for("the end of the lease", || {
        (home.json(&["lease", "list"]) == serde_json::json!([])).then_some(())
    });
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let home = Home::new();
    let dev = Dev::start(&home, &[]);
    dev.all_on_offer(&home);
    for line in ["offers", "ledger state", "events --from 0", "--help", "lease list --all"] {
        let script = format!("set -o pipefail; {} {line} | head -1", env!("CARGO_BIN_EXE_sublet"));
        let mut command = Command::new("bash");
        command.args(["-c", &script]).stdin(Stdio::null());
        command.env("XDG_CONFIG_HOME", home.path().join("config"));
        let done = Done::of(&[line], &command.output().unwrap());
        assert_eq!((done.code, done.err.as_str()), (0, ""), "{done:#?}");
        assert_eq!(done.out.lines().count(), 1, "{done:#?}");
    }
}

#[test]
fn a_typo_is_answered_with_what_was_meant() {
    let home = Home::new();
    for (arguments, meant) in [
        (&["lease", "crate"][..], "create"),
        (&["ofers"], "offers"),
        (&["lease", "plan", "--class", "bach"], "batch"),
        (&["lease", "plan", "--memroy", "1GiB"], "--memory"),
        (&["lease", "plan", "--memory", "80gib"], "GiB"),
        (&["price", "set", "--owner", "a", "--model", "b", "--tier", "standart", "1"], "standard"),
    ] {
        let done = home.sublet(arguments);
        assert_eq!(done.code, 2, "{done:#?}");
        assert!(done.err.contains(meant), "{done:#?}");
    }
}

#[test]
fn help_and_version_go_to_standard_output() {
    let home = Home::new();
    assert!(home.ok(&["--help"]).contains("Exit codes"));
    assert!(home.ok(&["--version"]).starts_with("sublet "));
    assert!(home.ok(&["lease", "run", "--help"]).contains("--gpus"));
}
