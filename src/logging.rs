//! Logs of the long-running commands.

/// Logs go to standard error; `SUBLET_LOG` says which, as `sublet_broker=debug`, else `default` does.
pub(crate) fn init(default: &str) {
    let wanted = std::env::var("SUBLET_LOG").unwrap_or_else(|_| default.to_owned());
    let filter = tracing_subscriber::EnvFilter::new(wanted);
    let is_terminal = std::io::IsTerminal::is_terminal(&std::io::stderr());
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(is_terminal);
    let log = log.with_writer(std::io::stderr);
    // A second logger in one process is refused; then the first one stays.
    let _ = log.try_init();
}
