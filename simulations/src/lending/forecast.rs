//! How long a GPU will stay idle, from how long GPUs of its cluster have been idle before.

use sublet_protocol::offers::IdleFor;
use sublet_protocol::units::Seconds;

/// Fewer finished idle times than this say nothing.
const ENOUGH: usize = 20;
/// Said until there are enough: ten minutes, an hour, four hours.
const UNKNOWN: IdleFor =
    IdleFor { p10: Seconds::new(600), p50: Seconds::new(3_600), p90: Seconds::new(14_400) };

/// Idle times of one cluster that the owner's return has ended.
#[derive(Debug, Default)]
pub(crate) struct Forecast {
    /// In ascending order.
    ended: Vec<Seconds>,
}

impl Forecast {
    /// An idle time has ended.
    pub(crate) fn learn(&mut self, idle: Seconds) {
        let place = self.ended.partition_point(|known| *known < idle);
        self.ended.insert(place, idle);
    }

    /// What is left for a GPU that has been idle for `age`: the quantiles of what was left, at that
    /// age, of the idle times known so far.
    pub(crate) fn after(&self, age: Seconds) -> IdleFor {
        let longer = &self.ended[self.ended.partition_point(|known| *known <= age)..];
        if longer.len() < ENOUGH {
            return UNKNOWN;
        }
        let at = |tenths: usize| {
            let rank = (longer.len() * tenths / 10).min(longer.len() - 1);
            longer[rank].saturating_sub(age)
        };
        IdleFor { p10: at(1), p50: at(5), p90: at(9) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_judged_by_idle_times_that_lasted_at_least_as_long() {
        let mut forecast = Forecast::default();
        for minutes in (1..=40).rev() {
            forecast.learn(Seconds::new(minutes * 60));
        }
        let quantiles = |age| {
            let IdleFor { p10, p50, p90 } = forecast.after(Seconds::new(age));
            [p10, p50, p90].map(|q| q.get() / 60)
        };
        assert_eq!(quantiles(0), [5, 21, 37]);
        // Of those longer than ten minutes, 30 are known: 11 to 40.
        assert_eq!(quantiles(600), [4, 16, 28]);
        // Too few lasted longer than half an hour.
        assert_eq!(forecast.after(Seconds::new(1_800)), UNKNOWN);
    }
}
