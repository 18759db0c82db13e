//! Whether a history of one thing could have happened one call after the other (Herlihy and Wing
//! 1990): the search of Wing and Gong (1993), which does not look twice at the same set of calls
//! that ended in the same state (Lowe 2017).
//!
//! Calls without an answer may have happened at any time after they were made, or not at all.

use std::collections::BTreeSet;

/// Most states that are looked at before the search gives up.
const LOOKS_MAX: usize = 2_000_000;

/// What is asked of a thing. Its state is a number, at first 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Call {
    /// Of a register: be this.
    Write(u64),
    /// Of anything: say what you are.
    Read,
    /// Of what is made once: be there (1).
    Create,
    /// Of a request: be asked for under one key (1). Asked again it stays as it is.
    Submit,
    /// Of a request that is asked for: be cancelled (2).
    Cancel,
}

/// What came of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    Done,
    Refused,
    Value(u64),
}

/// One call and its answer, with the times of one clock.
#[derive(Debug, Clone, Copy)]
pub(super) struct Operation {
    pub(super) call: Call,
    pub(super) answer: Option<Answer>,
    pub(super) began: u64,
    /// Nothing if nobody knows whether it was done.
    pub(super) ended: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Linearizable,
    NotLinearizable,
    /// The search was given up.
    Undecided,
}

/// The state after `call` at `state`, if it may be answered so there.
fn step(state: u64, call: Call, answer: Option<Answer>) -> Option<u64> {
    let is = |wanted: Answer| answer.is_none_or(|given| given == wanted);
    match call {
        Call::Write(value) => is(Answer::Done).then_some(value),
        Call::Read => is(Answer::Value(state)).then_some(state),
        Call::Create if state == 0 => is(Answer::Done).then_some(1),
        Call::Create => is(Answer::Refused).then_some(state),
        Call::Submit => is(Answer::Done).then_some(state.max(1)),
        Call::Cancel if state == 1 => is(Answer::Done).then_some(2),
        Call::Cancel => is(Answer::Refused).then_some(state),
    }
}

/// A place of the search: a state, and the calls that could have happened next.
struct Place {
    state: u64,
    next: Vec<usize>,
    tried: usize,
}

/// The search: which calls have happened so far, and in which order.
struct Search {
    operations: Vec<Operation>,
    happened: Vec<bool>,
    /// Answered calls that have not happened yet.
    left: usize,
}

impl Search {
    /// The calls that could happen next: those that were made before the first of the others ended.
    fn place(&self, state: u64) -> Place {
        let mut first_end = u64::MAX;
        let mut next = Vec::new();
        for (at, operation) in self.operations.iter().enumerate() {
            if operation.began > first_end {
                break;
            }
            if !self.happened[at] {
                next.push(at);
                first_end = first_end.min(operation.ended.unwrap_or(u64::MAX));
            }
        }
        // What has an answer first: the others may never have happened.
        next.sort_by_key(|at| self.operations[*at].ended.is_none());
        Place { state, next, tried: 0 }
    }

    fn set(&mut self, at: usize, has_happened: bool) {
        self.happened[at] = has_happened;
        if self.operations[at].ended.is_some() {
            match has_happened {
                true => self.left -= 1,
                false => self.left += 1,
            }
        }
    }

    /// What has happened, packed.
    fn packed(&self) -> Vec<u64> {
        let word = |bits: &[bool]| bits.iter().fold(0, |word, bit| (word << 1) | u64::from(*bit));
        self.happened.chunks(64).map(word).collect()
    }
}

/// Judges the history of one thing.
pub(super) fn check(history: &[Operation]) -> Verdict {
    let mut operations = history.to_vec();
    operations.sort_by_key(|operation| operation.began);
    let left = operations.iter().filter(|operation| operation.ended.is_some()).count();
    let happened = vec![false; operations.len()];
    let mut search = Search { operations, happened, left };
    let (mut places, mut way) = (vec![search.place(0)], Vec::new());
    let mut seen = BTreeSet::new();
    while search.left > 0 {
        let Some(place) = places.last_mut() else { return Verdict::NotLinearizable };
        let Some(at) = place.next.get(place.tried).copied() else {
            places.pop();
            if let Some(last) = way.pop() {
                search.set(last, false);
            }
            continue;
        };
        place.tried += 1;
        let Operation { call, answer, .. } = search.operations[at];
        let Some(state) = step(place.state, call, answer) else { continue };
        search.set(at, true);
        if seen.insert((search.packed(), state)) {
            way.push(at);
            places.push(search.place(state));
        } else {
            search.set(at, false);
        }
        if seen.len() > LOOKS_MAX {
            return Verdict::Undecided;
        }
    }
    Verdict::Linearizable
}
