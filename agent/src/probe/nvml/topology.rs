//! Which GPUs have an NVLink between them.

use nvml_wrapper::Device;
use nvml_wrapper::enum_wrappers::device::{P2pCapabilitiesIndex, P2pStatus};
use sublet_protocol::ids::DeviceId;

/// Two GPUs with an NVLink between them, the smaller id first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Link(pub DeviceId, pub DeviceId);

/// The links among `gpus`. A pair of which the driver does not say it has none.
pub(super) fn links(gpus: &[(DeviceId, Device<'_>)]) -> Vec<Link> {
    let mut links = Vec::new();
    for (place, (one, device)) in gpus.iter().enumerate() {
        for (other, peer) in &gpus[place + 1..] {
            let status = device.p2p_status(peer, P2pCapabilitiesIndex::NvLink);
            if matches!(status, Ok(P2pStatus::Ok)) {
                links.push(Link(*one.min(other), *one.max(other)));
            }
        }
    }
    links.sort_unstable();
    links
}
