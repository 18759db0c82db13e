//! The lines between an agent and a guard: one launch and orders down, states of the guest up.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use sublet_protocol::units::Millis;

/// A line that is neither an order nor a status.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("not a line of the guard's protocol: {line:?}")]
pub struct UnknownLine {
    line: String,
}

/// The first line that the agent sends, as JSON: what to run. Not on the guard's command line, for
/// every user of the machine can read that; not in its environment, for that could bend the guard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Launch {
    /// Kill everything at this boot time.
    pub deadline: Millis,
    /// Program and arguments.
    pub argv: Vec<String>,
    /// The guest's whole environment.
    pub env: Vec<(String, String)>,
}

/// Most bytes of a [`Launch`] line. A workload of 32 KiB with every byte escaped fits.
pub const LAUNCH_MAX: u64 = 256 * 1_024;

/// What the agent tells the guard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Kill everything at this boot time, earlier or later than the one before.
    Deadline(Millis),
    /// Pass this signal number on to the guest's process group.
    Signal(i32),
}

/// What the guard tells the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GuestStatus {
    /// The guest runs as this process, leader of the group of the same number.
    Started(i32),
    /// The guest could not be started; the number is the system's `errno` (0 if it gave none).
    Failed(i32),
    /// Something of the guest is still there long after the kill; the guard goes on trying.
    Stuck,
    /// The guest and everything that came from it are gone.
    Gone(Ended, Why),
}

/// How the guest's first process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// It exited with this code.
    Code(i32),
    /// This signal ended it.
    Signal(i32),
}

/// Who ended the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// It ended without the guard's doing (by itself or by a signal that was passed on).
    Itself,
    /// The guard killed it at the deadline.
    Deadline,
    /// The guard killed it because the agent's end of the socket closed.
    AgentGone,
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Deadline(at) => write!(f, "deadline {}", at.get()),
            Self::Signal(number) => write!(f, "signal {number}"),
        }
    }
}

impl FromStr for Order {
    type Err = UnknownLine;

    fn from_str(line: &str) -> Result<Self, UnknownLine> {
        let unknown = || UnknownLine { line: line.to_owned() };
        match line.split_once(' ') {
            Some(("deadline", at)) => {
                at.parse().map(|at| Self::Deadline(Millis::new(at))).map_err(|_| unknown())
            }
            Some(("signal", number)) => number.parse().map(Self::Signal).map_err(|_| unknown()),
            _ => Err(unknown()),
        }
    }
}

impl fmt::Display for GuestStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Started(process) => write!(f, "started {process}"),
            Self::Failed(errno) => write!(f, "failed {errno}"),
            Self::Stuck => write!(f, "stuck"),
            Self::Gone(ended, why) => {
                let why = match why {
                    Why::Itself => "itself",
                    Why::Deadline => "deadline",
                    Why::AgentGone => "agent-gone",
                };
                match ended {
                    Ended::Code(code) => write!(f, "gone code {code} {why}"),
                    Ended::Signal(signal) => write!(f, "gone signal {signal} {why}"),
                }
            }
        }
    }
}

impl FromStr for GuestStatus {
    type Err = UnknownLine;

    fn from_str(line: &str) -> Result<Self, UnknownLine> {
        let unknown = || UnknownLine { line: line.to_owned() };
        let number = |word: &str| word.parse::<i32>().map_err(|_| unknown());
        let words: Vec<&str> = line.split(' ').collect();
        match words.as_slice() {
            ["started", process] => Ok(Self::Started(number(process)?)),
            ["failed", errno] => Ok(Self::Failed(number(errno)?)),
            ["stuck"] => Ok(Self::Stuck),
            ["gone", how, value, why] => {
                let why = match *why {
                    "itself" => Why::Itself,
                    "deadline" => Why::Deadline,
                    "agent-gone" => Why::AgentGone,
                    _ => return Err(unknown()),
                };
                match *how {
                    "code" => Ok(Self::Gone(Ended::Code(number(value)?), why)),
                    "signal" => Ok(Self::Gone(Ended::Signal(number(value)?), why)),
                    _ => Err(unknown()),
                }
            }
            _ => Err(unknown()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_read_back_as_it_was_written() {
        for order in [Order::Deadline(Millis::new(u64::MAX)), Order::Signal(15)] {
            assert_eq!(order.to_string().parse(), Ok(order));
        }
        for status in [
            GuestStatus::Started(7),
            GuestStatus::Failed(2),
            GuestStatus::Stuck,
            GuestStatus::Gone(Ended::Code(3), Why::Itself),
            GuestStatus::Gone(Ended::Signal(9), Why::Deadline),
            GuestStatus::Gone(Ended::Signal(9), Why::AgentGone),
        ] {
            assert_eq!(status.to_string().parse(), Ok(status));
        }
    }

    #[test]
    fn a_line_that_is_no_order_is_refused() {
        for line in ["", "deadline", "deadline x", "deadline -1", "signal 99999999999", "kill 9"] {
            assert!(line.parse::<Order>().is_err(), "{line:?}");
        }
    }
}
