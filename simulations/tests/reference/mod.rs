//! An independent, plain simulator of the four baseline policies: the oracle for the replay through
//! the real rules. It shares the workload with it and nothing else; speed and elegance do not matter.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use sublet_simulations::replay::{GPUS_PER_NODE, Job, Workload};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Policy {
    StaticFifo,
    StaticShortestFirst,
    Borrow,
    OnePool,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// Seconds each job waited, by its index; `None` = dropped.
    pub(crate) waits: Vec<Option<u64>>,
    /// Jobs that ran outside their tenant's own pool.
    pub(crate) borrowed: usize,
}

/// Free GPUs per node.
struct Nodes(Vec<u32>);

impl Nodes {
    fn free(&self) -> u32 {
        self.0.iter().sum()
    }

    /// Best fit of at most one node's worth, the first node on a tie.
    fn best_fit(&self, gpus: u32, except: &[usize]) -> Option<usize> {
        (0..self.0.len())
            .filter(|node| self.0[*node] >= gpus && !except.contains(node))
            .min_by_key(|node| (self.0[*node], *node))
    }

    /// Where a job would go: best fit up to one node, else whole nodes and a best fit of the rest.
    fn fit(&self, gpus: u32) -> Option<Vec<(usize, u32)>> {
        let (whole, rest) = match gpus {
            ..=GPUS_PER_NODE => (0, gpus),
            _ => ((gpus / GPUS_PER_NODE) as usize, gpus % GPUS_PER_NODE),
        };
        let empty: Vec<usize> =
            (0..self.0.len()).filter(|node| self.0[*node] == GPUS_PER_NODE).take(whole).collect();
        if empty.len() < whole {
            return None;
        }
        let mut parts: Vec<_> = empty.iter().map(|node| (*node, GPUS_PER_NODE)).collect();
        if rest > 0 {
            parts.push((self.best_fit(rest, &empty)?, rest));
        }
        Some(parts)
    }
}

pub(crate) fn run(workload: &Workload, policy: Policy) -> Outcome {
    let one_pool = policy == Policy::OnePool;
    let pools = if one_pool {
        vec![(workload.gpus() / 8) as u32]
    } else {
        workload.pools.iter().map(|p| p.nodes).collect()
    };
    let mut pools: Vec<Nodes> =
        pools.into_iter().map(|nodes| Nodes(vec![GPUS_PER_NODE; nodes as usize])).collect();
    let mut queues = vec![VecDeque::<usize>::new(); pools.len()];
    // (end, sequence, pool, parts)
    let mut running = BinaryHeap::<Reverse<(u64, usize, usize, Vec<(usize, u32)>)>>::new();
    let mut outcome = Outcome { waits: vec![None; workload.jobs.len()], borrowed: 0 };
    let mut sequence = 0;
    let mut next = 0;
    let jobs = &workload.jobs;
    let submit = |job: &Job| job.submit.get();
    loop {
        let arrival = jobs.get(next).map(submit);
        let end = running.peek().map(|Reverse(first)| first.0);
        let Some(now) = [arrival, end].into_iter().flatten().min() else { return outcome };
        while running.peek().is_some_and(|Reverse(first)| first.0 == now) {
            let Reverse((_, _, pool, parts)) = running.pop().unwrap();
            for (node, gpus) in parts {
                pools[pool].0[node] += gpus;
            }
        }
        while jobs.get(next).is_some_and(|job| submit(job) == now) {
            let job = &jobs[next];
            if one_pool {
                queues[0].push_back(next);
            } else if !workload.outgrows_its_pool(job) {
                let queue = &mut queues[job.owner];
                let place = match policy {
                    Policy::StaticShortestFirst => {
                        queue.partition_point(|other| jobs[*other].duration <= job.duration)
                    }
                    _ => queue.len(),
                };
                queue.insert(place, next);
            }
            next += 1;
        }
        for owner in 0..pools.len() {
            while let Some(&head) = queues[owner].front() {
                let gpus = jobs[head].gpus;
                let mut candidates = vec![owner];
                if policy == Policy::Borrow {
                    let mut others: Vec<usize> =
                        (0..pools.len()).filter(|p| *p != owner && queues[*p].is_empty()).collect();
                    others.sort_by_key(|pool| {
                        (Reverse(pools[*pool].free()), workload.pools[*pool].listed)
                    });
                    candidates.extend(others);
                }
                let found =
                    candidates.iter().find_map(|p| pools[*p].fit(gpus).map(|parts| (*p, parts)));
                let Some((pool, parts)) = found else { break };
                queues[owner].pop_front();
                for (node, gpus) in &parts {
                    pools[pool].0[*node] -= gpus;
                }
                outcome.borrowed += usize::from(pool != owner);
                outcome.waits[head] = Some(now - submit(&jobs[head]));
                running.push(Reverse((now + jobs[head].duration.get(), sequence, pool, parts)));
                sequence += 1;
            }
        }
    }
}
