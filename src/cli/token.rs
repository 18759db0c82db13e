//! `sublet token`: a short-lived token for `curl` and friends.

use clap::Args;
use serde_json::json;
use sublet_protocol::ids::TenantId;

use super::amounts;
use super::global::Context;
use crate::config::{Role, TOKEN_LIFE, Wanted};
use crate::failure::{Exit, Failure, Outcome};
use crate::output::{self, Format};

/// Print a token for the API, made with the profile's key.
///
/// For example: curl -H "Authorization: Bearer $(sublet token)" "$URL/v1/offers"
#[derive(Debug, Args)]
pub(super) struct Token {
    /// For this tenant instead of the profile's.
    #[arg(long, value_parser = amounts::tenant)]
    tenant: Option<TenantId>,
    /// With these rights only; may be given several times. Default: those of the profile.
    #[arg(long = "role", value_enum, value_name = "ROLE", value_delimiter = ',')]
    roles: Vec<Role>,
}

impl Token {
    /// Prints it and nothing else.
    pub(super) fn run(self, context: &Context) -> Outcome<()> {
        let wanted = Wanted { tenant: self.tenant.or(context.acting()), roles: self.roles };
        let settings = context.settings()?;
        let token = settings.credentials.token(&wanted)?.ok_or_else(|| {
            Failure::new(Exit::Auth, "there is no profile with a key to make a token with")
                .hint("`sublet dev` writes one while it runs")
        })?;
        match context.printer.format {
            Format::Json => {
                let life = TOKEN_LIFE.as_secs();
                context.printer.json(&json!({ "token": token, "expires_in": life }))
            }
            Format::Table | Format::Wide | Format::Csv => output::print(&format!("{token}\n")),
        }
    }
}
