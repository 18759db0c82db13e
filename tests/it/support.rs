//! A `sublet dev` of a test's own, and its command line.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;

/// How long anything may take: far more than it needs, for a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A user's home: configuration and data, removed at the end.
pub struct Home {
    folder: TempDir,
}

impl Home {
    pub fn new() -> Home {
        Home { folder: tempfile::tempdir().unwrap() }
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    pub fn profile(&self) -> PathBuf {
        self.path().join("config/sublet/profiles/dev.toml")
    }

    /// The command, with nothing of the tester's own environment that could change it.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sublet"));
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("SUBLET_") {
                command.env_remove(name);
            }
        }
        command.env("XDG_CONFIG_HOME", self.path().join("config"));
        command.env("HOME", self.path());
        // A server that is killed cannot remove its temporary folder.
        command.env("TMPDIR", self.path());
        command.args(arguments).stdin(Stdio::null());
        command
    }

    /// Runs the command to its end.
    pub fn sublet(&self, arguments: &[&str]) -> Done {
        let output = self.command(arguments).output().unwrap();
        Done::of(arguments, &output)
    }

    /// Runs it and expects it to succeed; its standard output.
    #[track_caller]
    pub fn ok(&self, arguments: &[&str]) -> String {
        let done = self.sublet(arguments);
        assert_eq!(done.code, 0, "{done:#?}");
        done.out
    }

    /// Runs it with JSON output and expects it to succeed.
    #[track_caller]
    pub fn json(&self, arguments: &[&str]) -> Value {
        let arguments = [&["--output", "json"], arguments].concat();
        let out = self.ok(&arguments);
        serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}"))
    }
}

/// A command that has ended; shown whole when a test fails.
#[derive(Debug)]
pub struct Done {
    _what: String,
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Done {
    pub fn of(arguments: &[&str], output: &Output) -> Done {
        Done {
            _what: arguments.join(" "),
            code: output.status.code().unwrap_or(-1),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

/// A running `sublet dev`. Killed when dropped.
pub struct Dev {
    child: Child,
    pub server: String,
}

impl Dev {
    /// Starts it and waits until it answers and every GPU is on offer.
    pub fn start(home: &Home, arguments: &[&str]) -> Dev {
        // A profile of an earlier server must not be taken for this one's.
        let _ = fs::remove_file(home.profile());
        let arguments = [&["dev", "--no-load"], arguments].concat();
        let mut command = home.command(&arguments);
        let log = fs::File::create(home.path().join("dev.log")).unwrap();
        command.stdout(log.try_clone().unwrap()).stderr(log);
        let mut dev = Dev { child: command.spawn().unwrap(), server: String::new() };
        dev.server = wait_for("the profile", || {
            if let Some(status) = dev.child.try_wait().unwrap() {
                let log = fs::read_to_string(home.path().join("dev.log")).unwrap();
                panic!("dev ended with {status}: {log}");
            }
            let text = fs::read_to_string(home.profile()).ok()?;
            let line = text.lines().find_map(|line| line.strip_prefix("server = "))?;
            Some(line.trim_matches('"').to_owned())
        });
        dev
    }

    /// Waits until every GPU is on offer.
    pub fn all_on_offer(&self, home: &Home) {
        wait_for("48 offers", || {
            let page = home.json(&["offers"]);
            (page["total"] == 48).then_some(())
        });
    }

    /// Kills it as a power cut would.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Asks it to stop; its exit code.
    pub fn stop(mut self) -> i32 {
        let id = Pid::from_raw(i32::try_from(self.child.id()).unwrap());
        kill(id, Signal::SIGTERM).unwrap();
        wait_for("the end of dev", || self.child.try_wait().unwrap()).code().unwrap_or(-1)
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Looks until there is something.
#[track_caller]
pub fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < end, "waited in vain for {what}");
        sleep(Duration::from_millis(50));
    }
}

/// A field of a JSON object as text.
#[track_caller]
pub fn text(value: &Value, pointer: &str) -> String {
    let found = value.pointer(pointer).and_then(Value::as_str);
    found.unwrap_or_else(|| panic!("no text at {pointer} of {value}")).to_owned()
}
