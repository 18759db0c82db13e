//! The name of a virtual cluster, as traces call their tenants.

use std::fmt;

use sublet_protocol::ids::TenantId;

/// Longest name, characters; the same limit as a tenant's id.
const LENGTH_MAX: usize = 32;

/// A virtual cluster's name: 1 to 32 ASCII letters, digits and hyphens, kept as it was written.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VcName(String);

impl VcName {
    /// Takes `text` if it is a name, else `None`.
    pub fn new(text: &str) -> Option<Self> {
        let is_name = (1..=LENGTH_MAX).contains(&text.len())
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        is_name.then(|| Self(text.to_owned()))
    }

    /// The tenant that stands for it: the name in lower case.
    pub fn tenant(&self) -> TenantId {
        TenantId::new(&self.0.to_ascii_lowercase()).expect("checked when the name was taken")
    }

    /// The name as the trace spells it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for VcName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
