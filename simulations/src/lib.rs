//! Trace loaders, generator, baselines and replay through the real rules.
