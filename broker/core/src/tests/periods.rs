//! Closing the books.

use sublet_protocol::commands::{Actor, Command};
use sublet_protocol::events::Event;
use sublet_protocol::refusals::Rejection;
use sublet_protocol::units::{Millis, Timestamp};

use crate::testing::{World, operator, user};

fn close(until: Timestamp) -> Command {
    Command::ClosePeriod { until }
}

#[test]
fn an_operator_closes_what_is_over_and_nothing_is_opened_again() {
    let mut world = World::with_nodes(1);
    let now = world.state.now();
    let (until, later) = (now, now.after_millis(Millis::new(1)));
    for other in [user("acme"), user("owner"), Actor::Leader] {
        world.refuse(other, close(until), Rejection::NotAllowed);
    }
    assert_eq!(world.state.closed_until(), Timestamp::ZERO);
    world.refuse(
        operator(),
        close(later.after_millis(Millis::new(60_000))),
        Rejection::PeriodNotOver,
    );
    let events = world.must(operator(), close(until));
    assert_eq!(events.last(), Some(&Event::PeriodClosed { from: Timestamp::ZERO, until }));
    assert_eq!(world.state.closed_until(), until);
    // Once more changes nothing; an earlier instant would open again what is closed.
    assert_eq!(world.must(operator(), close(until)), vec![]);
    let earlier = Timestamp::new(until.get() - 1);
    world.refuse(operator(), close(earlier), Rejection::PeriodClosed);
    assert_eq!(world.state.closed_until(), until);
}
