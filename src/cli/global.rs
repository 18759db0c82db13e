//! Flags of every command, and what a command needs to do its work.

use std::path::PathBuf;

use clap::Args;
use sublet_protocol::ids::TenantId;

use crate::client::{Client, Reads};
use crate::config::{Given, Role, Settings, Wanted};
use crate::failure::Outcome;
use crate::output::{Color, Format, Printer};

/// Flags of every command. Flags go before environment variables, those before the profile.
#[derive(Debug, Args)]
#[command(next_help_heading = "Everywhere")]
pub(super) struct Global {
    /// The server's URL, as http://127.0.0.1:8080.
    #[arg(long, global = true, env = "SUBLET_SERVER", value_name = "URL")]
    server: Option<String>,
    /// A token to use instead of one made with the profile's key.
    #[arg(long, global = true, env = "SUBLET_TOKEN", value_name = "JWT", hide_env_values = true)]
    token: Option<String>,
    /// The profile with server and key. `default` if there is one, else `dev`, which `sublet dev`
    /// writes.
    #[arg(long, global = true, env = "SUBLET_PROFILE", value_name = "NAME")]
    profile: Option<String>,
    /// Act for this tenant instead of the profile's.
    #[arg(long = "as", global = true, env = "SUBLET_TENANT", value_name = "TENANT")]
    acting: Option<TenantId>,
    /// Read what the asked broker knows, without its asking the leader: answered also where there is
    /// no leader, and perhaps behind. How far is said on standard error.
    #[arg(long, global = true)]
    stale: bool,
    /// The form of the output.
    #[arg(
        short,
        long,
        global = true,
        env = "SUBLET_OUTPUT",
        value_enum,
        default_value = "table",
        value_name = "FORM"
    )]
    output: Format,
    /// Write what names the record of the change to this file, for `sublet-audit check-proof`.
    #[arg(long, global = true, value_name = "FILE")]
    receipt: Option<PathBuf>,
    /// No colours. NO_COLOR does the same.
    #[arg(long, global = true)]
    no_color: bool,
}

/// What a command needs.
pub(super) struct Context {
    /// How to print.
    pub(super) printer: Printer,
    given: Given,
    acting: Option<TenantId>,
    receipt: Option<PathBuf>,
    reads: Reads,
}

impl Context {
    /// From the flags.
    pub(super) fn new(global: Global) -> Context {
        let Global { server, token, profile, acting, stale, output, receipt, no_color } = global;
        let color = if no_color { Color::Never } else { Color::Auto };
        let printer = Printer::new(output, color);
        let reads = if stale { Reads::Stale } else { Reads::Current };
        Context { printer, given: Given { server, token, profile }, acting, receipt, reads }
    }

    /// What flags, environment and profile say together.
    pub(super) fn settings(&self) -> Outcome<Settings> {
        Settings::resolve(&self.given)
    }

    /// A client with the profile's rights.
    pub(super) fn client(&self) -> Outcome<Client> {
        self.client_as(Vec::new())
    }

    /// A client with no more than these rights; with all of the profile's if it has none of them.
    pub(super) fn client_as(&self, mut roles: Vec<Role>) -> Outcome<Client> {
        let settings = self.settings()?;
        roles.retain(|role| settings.credentials.has(*role));
        let wanted = Wanted { tenant: self.acting, roles };
        Ok(Client::new(settings, wanted, self.receipt.clone()).reading(self.reads))
    }

    /// Whom to act for, if it was said.
    pub(super) const fn acting(&self) -> Option<TenantId> {
        self.acting
    }
}
