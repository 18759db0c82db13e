//! The mailbox of the agent link: which message is fresh, which a repetition, and who waits for
//! which answer.
//!
//! A message up is repeated under its sequence number until it is answered. The mailbox decodes it,
//! checks that it comes from whom it claims, answers repetitions from memory and remembers a bounded
//! number of answers per agent. What falls out of its memory is handled again, which is safe: every
//! message is made to be repeated. It decides nothing else; the leader's driver uses it.

use std::collections::BTreeMap;

use sublet_protocol::agent::{Reply, Up, UpEnvelope};
use sublet_protocol::codec;
use sublet_protocol::ids::{Boot, HostHash};
use sublet_protocol::refusals::Rejection;
use sublet_protocol::transport::{Address, Incoming};

use crate::error::Chain;
use crate::metrics;

/// Agents whose sequences are remembered.
pub(crate) const AGENTS_MAX: usize = 131_072;
/// Messages of one agent that may wait for their answers.
pub(crate) const WAITING_MAX: usize = 256;
/// Answers remembered for one agent.
pub(crate) const ANSWERS_MAX: usize = 256;

/// Where an answer goes.
type Answer = Box<dyn FnOnce(Vec<u8>) + Send>;

/// Names a message that waits for its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ticket {
    from: Address,
    start: Start,
    sequence: u64,
}

/// Which start of which machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Start {
    host: HostHash,
    boot: Boot,
}

/// What came of a message.
pub(crate) enum Received {
    /// Fresh: to be handled, then [`Mailbox::answer`]ed under the ticket.
    Fresh(Ticket, UpEnvelope),
    /// Guest output: answered already, to be relayed.
    Output(UpEnvelope),
    /// Dealt with.
    Nothing,
}

/// Everything that agents said and that is not settled.
#[derive(Default)]
pub(crate) struct Mailbox {
    agents: BTreeMap<Address, Window>,
}

struct Window {
    start: Start,
    waiting: BTreeMap<u64, Answer>,
    answered: BTreeMap<u64, Vec<u8>>,
}

impl Mailbox {
    /// Takes a message in.
    pub(crate) fn receive(&mut self, incoming: Incoming) -> Received {
        let Incoming { from, message, answer } = incoming;
        let envelope: UpEnvelope = match codec::decode(&message) {
            Ok(envelope) => envelope,
            Err(error) => {
                tracing::warn!(cluster = %from.cluster, node = %from.node, error = %Chain(&error), "message refused");
                metrics::message_refused("malformed");
                return settle(answer, &Reply::Refused(Rejection::NotAllowed));
            }
        };
        if (envelope.cluster, envelope.node) != (from.cluster, from.node) {
            tracing::warn!(
                cluster = %from.cluster, node = %from.node, claimed_cluster = %envelope.cluster,
                claimed_node = %envelope.node, "message claims another sender"
            );
            metrics::message_refused("foreign");
            return settle(answer, &Reply::Refused(Rejection::SliceForeign));
        }
        if let Up::Output { .. } = envelope.body {
            answer_with(answer, &Reply::Done);
            return Received::Output(envelope);
        }
        self.admit(from, envelope, answer)
    }

    fn admit(&mut self, from: Address, envelope: UpEnvelope, answer: Answer) -> Received {
        let start = Start { host: envelope.host, boot: envelope.boot };
        if !self.agents.contains_key(&from) && self.agents.len() >= AGENTS_MAX {
            return settle(answer, &Reply::Later);
        }
        let window = self.agents.entry(from).or_insert_with(|| Window::new(start));
        if window.start != start {
            if window.start.host == start.host && start.boot < window.start.boot {
                metrics::message_refused("old_boot");
                return settle(answer, &Reply::Refused(Rejection::BootOld));
            }
            // Nobody waits for the answers of an earlier start any more.
            *window = Window::new(start);
        }
        let sequence = envelope.sequence;
        if let Some(bytes) = window.answered.get(&sequence) {
            metrics::message_repeated();
            answer(bytes.clone());
            return Received::Nothing;
        }
        if let Some(waiting) = window.waiting.get_mut(&sequence) {
            metrics::message_repeated();
            // Whoever repeats has given up on the earlier call.
            *waiting = answer;
            return Received::Nothing;
        }
        if window.waiting.len() >= WAITING_MAX {
            return settle(answer, &Reply::Later);
        }
        window.waiting.insert(sequence, answer);
        Received::Fresh(Ticket { from, start, sequence }, envelope)
    }

    /// Answers a fresh message, and its repetitions from now on. [`Reply::Later`] is not kept: the
    /// repetition it asks for must be handled.
    pub(crate) fn answer(&mut self, ticket: Ticket, reply: &Reply) {
        let Some(window) = self.agents.get_mut(&ticket.from) else { return };
        if window.start != ticket.start {
            return;
        }
        let Some(answer) = window.waiting.remove(&ticket.sequence) else { return };
        let bytes = encoded(reply);
        if *reply != Reply::Later {
            window.answered.insert(ticket.sequence, bytes.clone());
            if window.answered.len() > ANSWERS_MAX {
                window.answered.pop_first();
            }
        }
        answer(bytes);
    }
}

impl Window {
    fn new(start: Start) -> Self {
        Self { start, waiting: BTreeMap::new(), answered: BTreeMap::new() }
    }
}

fn settle(answer: Answer, reply: &Reply) -> Received {
    answer_with(answer, reply);
    Received::Nothing
}

fn answer_with(answer: Answer, reply: &Reply) {
    answer(encoded(reply));
}

fn encoded(reply: &Reply) -> Vec<u8> {
    codec::encode(reply).expect("a reply is a few bytes: an enum of enums")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use sublet_protocol::ids::{ClusterId, NodeId};

    fn address() -> Address {
        Address { cluster: ClusterId::new("c").unwrap(), node: NodeId::new("n").unwrap() }
    }

    fn hello(boot: u64, sequence: u64) -> UpEnvelope {
        let Address { cluster, node } = address();
        let host = HostHash([1; 16]);
        UpEnvelope { cluster, node, host, boot: Boot::new(boot), sequence, body: Up::Hello }
    }

    /// Hands a message in; the receiver gets the answer.
    fn send(
        mailbox: &mut Mailbox,
        from: Address,
        message: Vec<u8>,
    ) -> (Received, mpsc::Receiver<Reply>) {
        let (sender, answers) = mpsc::channel();
        let answer = Box::new(move |bytes: Vec<u8>| {
            let _ = sender.send(codec::decode(&bytes).unwrap());
        });
        (mailbox.receive(Incoming { from, message, answer }), answers)
    }

    fn send_good(
        mailbox: &mut Mailbox,
        envelope: &UpEnvelope,
    ) -> (Received, mpsc::Receiver<Reply>) {
        send(mailbox, address(), codec::encode(envelope).unwrap())
    }

    #[test]
    fn a_message_is_handled_once_and_its_repetitions_get_the_same_answer() {
        let mut mailbox = Mailbox::default();
        let (received, first) = send_good(&mut mailbox, &hello(1, 5));
        let Received::Fresh(ticket, _) = received else { panic!("not fresh") };
        let (received, second) = send_good(&mut mailbox, &hello(1, 5));
        assert!(matches!(received, Received::Nothing));
        mailbox.answer(ticket, &Reply::Done);
        assert!(first.try_recv().is_err(), "the first call was given up");
        assert_eq!(second.recv(), Ok(Reply::Done));
        let (received, third) = send_good(&mut mailbox, &hello(1, 5));
        assert!(matches!(received, Received::Nothing));
        assert_eq!(third.recv(), Ok(Reply::Done));
    }

    #[test]
    fn a_message_that_was_put_off_is_handled_again() {
        let mut mailbox = Mailbox::default();
        let (received, answers) = send_good(&mut mailbox, &hello(1, 5));
        let Received::Fresh(ticket, _) = received else { panic!("not fresh") };
        mailbox.answer(ticket, &Reply::Later);
        assert_eq!(answers.recv(), Ok(Reply::Later));
        assert!(matches!(send_good(&mut mailbox, &hello(1, 5)).0, Received::Fresh(..)));
    }

    #[test]
    fn a_newer_start_begins_its_sequence_anew_and_an_older_one_is_refused() {
        let mut mailbox = Mailbox::default();
        let (received, _) = send_good(&mut mailbox, &hello(1, 5));
        let Received::Fresh(old, _) = received else { panic!("not fresh") };
        let (received, newer) = send_good(&mut mailbox, &hello(2, 5));
        assert!(matches!(received, Received::Fresh(..)));
        mailbox.answer(old, &Reply::Done);
        assert!(newer.try_recv().is_err(), "an answer to the earlier start");
        let (_, answers) = send_good(&mut mailbox, &hello(1, 6));
        assert_eq!(answers.recv(), Ok(Reply::Refused(Rejection::BootOld)));
    }

    #[test]
    fn a_message_of_another_sender_or_form_is_refused() {
        let mut mailbox = Mailbox::default();
        let other = Address { node: NodeId::new("m").unwrap(), ..address() };
        let good = codec::encode(&hello(1, 1)).unwrap();
        let mut newer = good.clone();
        newer[0] = 99;
        for (from, message, rejection) in [
            (other, good.clone(), Rejection::SliceForeign),
            (address(), newer, Rejection::NotAllowed),
            (address(), good[..good.len() - 1].to_vec(), Rejection::NotAllowed),
            (address(), vec![], Rejection::NotAllowed),
        ] {
            let (received, answers) = send(&mut mailbox, from, message);
            assert!(matches!(received, Received::Nothing));
            assert_eq!(answers.recv(), Ok(Reply::Refused(rejection)));
        }
        assert!(mailbox.agents.is_empty());
    }

    #[test]
    fn waiting_messages_and_remembered_answers_are_bounded() {
        let mut mailbox = Mailbox::default();
        let mut tickets = Vec::new();
        for sequence in 0..u64::try_from(WAITING_MAX).unwrap() {
            let (received, _) = send_good(&mut mailbox, &hello(1, sequence));
            let Received::Fresh(ticket, _) = received else { panic!("not fresh") };
            tickets.push(ticket);
        }
        let (_, answers) = send_good(&mut mailbox, &hello(1, 1_000_000));
        assert_eq!(answers.recv(), Ok(Reply::Later));
        for sequence in 0..u64::try_from(2 * ANSWERS_MAX).unwrap() {
            if let Some(ticket) = tickets.pop() {
                mailbox.answer(ticket, &Reply::Done);
            }
            let (received, _) = send_good(&mut mailbox, &hello(1, 2_000_000 + sequence));
            if let Received::Fresh(ticket, _) = received {
                tickets.push(ticket);
            }
        }
        let window = &mailbox.agents[&address()];
        assert!(window.answered.len() <= ANSWERS_MAX);
        assert!(window.waiting.len() <= WAITING_MAX);
    }
}
