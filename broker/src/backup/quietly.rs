//! Panics that are answers: whoever reads a damaged backup is told what is wrong with it, once.

use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

thread_local! {
    /// Whether panics of this thread are somebody's answer.
    static IS_QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Calls it; nothing if it panics. The panic is not printed. What it has changed is of no more use.
pub(super) fn quietly<T>(call: impl FnOnce() -> T) -> Option<T> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |told| {
            if !IS_QUIET.get() {
                before(told);
            }
        }));
    });
    let was_quiet = IS_QUIET.replace(true);
    let called = panic::catch_unwind(AssertUnwindSafe(call));
    IS_QUIET.set(was_quiet);
    called.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_answer_here_and_only_here() {
        assert_eq!(quietly(|| 7), Some(7));
        assert_eq!(quietly(|| -> u8 { panic!("not printed") }), None);
        assert!(!IS_QUIET.get());
        let nested = quietly(|| (quietly(|| panic!("not printed")), IS_QUIET.get()));
        assert_eq!(nested, Some((None::<()>, true)));
    }
}
