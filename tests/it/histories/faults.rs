//! What is broken, one thing after the other.

use std::time::Duration;

use nix::sys::signal::Signal;

use crate::brokers::{Brokers, Wire};

/// One thing that is broken for a while.
#[derive(Debug, Clone, Copy)]
pub(super) enum Fault {
    /// The leader's connections are closed, and none is made.
    LeaderCutOff,
    /// What the leader says does not arrive; what it is told does.
    LeaderMute,
    /// What the leader is told does not arrive; what it says does.
    LeaderDeaf,
    /// The leader's process stands still, and goes on as if nothing had been.
    LeaderStopped,
    /// The leader is killed and started again.
    LeaderKilled,
    /// A follower is killed and started again while another does not hear it.
    FollowerKilled,
    /// A follower hears nothing, but its words arrive.
    FollowerDeaf,
    /// Everything arrives late.
    Slow,
}

const ALL: [Fault; 8] = [
    Fault::LeaderCutOff,
    Fault::LeaderKilled,
    Fault::LeaderMute,
    Fault::LeaderStopped,
    Fault::FollowerKilled,
    Fault::LeaderDeaf,
    Fault::Slow,
    Fault::FollowerDeaf,
];

/// How late everything arrives: more than a beat of the leader's heart.
const LATE: Duration = Duration::from_millis(300);

impl Fault {
    /// The fault of a round.
    pub(super) fn of(round: u64) -> Fault {
        ALL[usize::try_from(round).unwrap() % ALL.len()]
    }

    /// Breaks it for so long, and mends it.
    pub(super) fn strike(self, brokers: &mut Brokers, time: Duration) {
        let leader = brokers.leader(1, None);
        let follower = brokers.other_than(&[leader]);
        let other = brokers.other_than(&[leader, follower]);
        match self {
            Fault::LeaderCutOff => brokers.cut_off(leader),
            Fault::LeaderMute => brokers.wire(&[(leader, follower), (leader, other)], Wire::Held),
            Fault::LeaderDeaf => brokers.wire(&[(follower, leader), (other, leader)], Wire::Held),
            Fault::FollowerDeaf => {
                brokers.wire(&[(leader, follower), (other, follower)], Wire::Held);
            }
            Fault::Slow => {
                let all = [1, 2, 3].map(|from| [1, 2, 3].map(|to| (from, to))).concat();
                brokers.wire(&all, Wire::Late(LATE));
            }
            Fault::LeaderStopped => brokers.signal(leader, Signal::SIGSTOP),
            Fault::LeaderKilled => brokers.kill(leader),
            Fault::FollowerKilled => {
                brokers.kill(follower);
                brokers.wire(&[(leader, other)], Wire::Late(LATE));
            }
        }
        std::thread::sleep(time);
        brokers.heal();
        match self {
            Fault::LeaderStopped => brokers.signal(leader, Signal::SIGCONT),
            Fault::LeaderKilled => brokers.start(leader),
            Fault::FollowerKilled => brokers.start(follower),
            Fault::LeaderCutOff
            | Fault::LeaderMute
            | Fault::LeaderDeaf
            | Fault::FollowerDeaf
            | Fault::Slow => {}
        }
    }
}
