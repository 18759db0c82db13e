//! How the command line behaves in a shell: pipes, exit codes, help, no server.

use std::process::{Command, Stdio};

use crate::support::{Dev, Done, Home};

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
