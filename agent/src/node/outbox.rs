//! Messages that wait to be sent, in order. A newer word on the same thing replaces an older one,
//! so the queue stays bounded however long the broker is away.

use std::collections::VecDeque;

use sublet_protocol::agent::Up;
use sublet_protocol::capacity::SliceId;
use sublet_protocol::ids::Token;

/// Pieces of output that wait; older ones are dropped, output may be lost.
const OUTPUT_MAX: usize = 256;
/// Refusals that wait; a broker whose refusal was dropped sends its grant again.
const NACK_MAX: usize = 256;

/// The queue.
#[derive(Debug, Default)]
pub struct Outbox(VecDeque<Up>);

/// What a message is about, as far as a newer one makes it pointless.
#[derive(PartialEq, Eq)]
enum About {
    Offer(SliceId),
    Member(&'static str, SliceId, Token),
}

fn about(message: &Up) -> Option<About> {
    match message {
        Up::Offer(terms) => Some(About::Offer(terms.slice)),
        Up::Rescind { slice, .. } => Some(About::Offer(*slice)),
        Up::Confirm { slice, token, .. }
        | Up::Nack { slice, token, .. }
        | Up::Stopped { slice, token, .. }
        | Up::Reclaim { slice, token, .. } => Some(About::Member(message.kind(), *slice, *token)),
        Up::Hello | Up::Renew { .. } | Up::Inventory { .. } | Up::Output { .. } | Up::Clock(_) => {
            None
        }
    }
}

/// Whether `new` makes `old` pointless.
#[must_use]
pub fn replaces(new: &Up, old: &Up) -> bool {
    about(new).is_some_and(|new| about(old) == Some(new))
}

impl Outbox {
    /// Takes a message; what it makes pointless is dropped.
    pub fn push(&mut self, message: Up) {
        match self.0.iter_mut().find(|old| replaces(&message, old)) {
            // In its place: the end of what an earlier start ran is said before the hello.
            Some(old) if matches!(message, Up::Stopped { .. }) => *old = message,
            _none_or_other => {
                self.0.retain(|old| !replaces(&message, old));
                self.0.push_back(message);
            }
        }
        self.bound(OUTPUT_MAX, |one| matches!(one, Up::Output { .. }));
        self.bound(NACK_MAX, |one| matches!(one, Up::Nack { .. }));
    }

    /// Takes a message that makes the one before the oldest pointless: it is next.
    pub fn push_first(&mut self, message: Up) {
        self.0.retain(|old| !replaces(&message, old));
        self.0.push_front(message);
    }

    /// Brings what makes `old` pointless to the front. Says whether there is any: then `old` must not
    /// be said again.
    pub fn bring_forward(&mut self, old: &Up) -> bool {
        let place = self.0.iter().position(|one| replaces(one, old));
        let newer = place.and_then(|place| self.0.remove(place));
        let is_there = newer.is_some();
        if let Some(newer) = newer {
            self.0.push_front(newer);
        }
        is_there
    }

    /// How many messages wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether none waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The oldest message.
    pub fn pop(&mut self) -> Option<Up> {
        self.0.pop_front()
    }

    /// Gives up on output: the broker is away, and the rest must not wait behind it.
    pub fn drop_output(&mut self) {
        self.0.retain(|one| !matches!(one, Up::Output { .. }));
    }

    fn bound(&mut self, most: usize, is_kind: fn(&Up) -> bool) {
        if self.0.iter().filter(|one| is_kind(one)).count() > most
            && let Some(oldest) = self.0.iter().position(is_kind)
        {
            self.0.remove(oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use sublet_protocol::agent::Stream;
    use sublet_protocol::capacity::Part;
    use sublet_protocol::commands::{GuestOutcome, NackReason};
    use sublet_protocol::ids::{ClusterId, DeviceId, LeaseId, NodeId};
    use sublet_protocol::offers::RescindReason;
    use sublet_protocol::units::Millis;

    use super::*;

    fn slice(device: u128) -> SliceId {
        SliceId {
            cluster: ClusterId::new("c").unwrap(),
            node: NodeId::new("n").unwrap(),
            device: DeviceId::new(device),
            part: Part::Whole,
        }
    }

    fn rescind(device: u128, generation: u64) -> Up {
        let reason = RescindReason::NotIdle;
        Up::Rescind { slice: slice(device), generation, reason }
    }

    fn confirm(counter: u64, nonce: u64) -> Up {
        let (lease, token) = (LeaseId::new(1), Token { epoch: 0, counter });
        Up::Confirm { lease, slice: slice(1), token, nonce: Millis::new(nonce) }
    }

    fn output(offset: u64) -> Up {
        let (lease, token) = (LeaseId::new(1), Token { epoch: 0, counter: 1 });
        Up::Output { lease, token, stream: Stream::Stdout, offset, bytes: vec![] }
    }

    fn drain(outbox: &mut Outbox) -> Vec<Up> {
        std::iter::from_fn(|| outbox.pop()).collect()
    }

    #[test]
    fn a_newer_word_on_a_slice_or_member_replaces_the_older_and_nothing_else() {
        let mut outbox = Outbox::default();
        for message in
            [Up::Hello, rescind(1, 1), rescind(2, 1), confirm(1, 5), confirm(2, 5), rescind(1, 2)]
        {
            outbox.push(message);
        }
        outbox.push(confirm(1, 9));
        let expected = [Up::Hello, rescind(2, 1), confirm(2, 5), rescind(1, 2), confirm(1, 9)];
        assert_eq!(drain(&mut outbox), expected);
    }

    #[test]
    fn the_end_of_a_member_keeps_its_place_before_the_hello() {
        let end = |used| Up::Stopped {
            lease: LeaseId::new(1),
            slice: slice(1),
            token: Token { epoch: 0, counter: 1 },
            used: Millis::new(used),
            outcome: GuestOutcome::Stopped,
        };
        let mut outbox = Outbox::default();
        for message in [end(1), Up::Hello, end(2)] {
            outbox.push(message);
        }
        assert_eq!(outbox.pop(), Some(end(2)));
        outbox.push_first(end(3));
        assert_eq!(drain(&mut outbox), [end(3), Up::Hello]);
    }

    #[test]
    fn an_unanswered_message_gives_way_to_the_newer_word_that_waits() {
        let mut outbox = Outbox::default();
        for message in [rescind(2, 1), rescind(1, 2)] {
            outbox.push(message);
        }
        assert!(!outbox.bring_forward(&rescind(3, 1)), "nothing is said of that slice");
        assert!(outbox.bring_forward(&rescind(1, 1)));
        assert_eq!(drain(&mut outbox), [rescind(1, 2), rescind(2, 1)]);
        assert!(outbox.is_empty() && !outbox.bring_forward(&rescind(1, 1)));
    }

    #[test]
    fn output_and_refusals_are_bounded_and_the_oldest_go() {
        let mut outbox = Outbox::default();
        for counter in 0..1_000 {
            outbox.push(output(counter));
            outbox.push(Up::Nack {
                lease: LeaseId::new(1),
                slice: slice(1),
                token: Token { epoch: 0, counter },
                reason: NackReason::StaleToken,
            });
        }
        outbox.push(Up::Hello);
        let left = drain(&mut outbox);
        assert_eq!(left.len(), OUTPUT_MAX + NACK_MAX + 1);
        assert_eq!(left[0], output(744));
        for counter in 0..9 {
            outbox.push(output(counter));
        }
        outbox.push(Up::Hello);
        outbox.drop_output();
        assert_eq!(drain(&mut outbox), [Up::Hello]);
    }
}
