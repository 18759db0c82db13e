//! The shell round the rules: raft, agent link, HTTP, planner.
