//! Who keeps a GPU, or a part of it, and when.

use std::collections::BTreeMap;

use sublet_protocol::capacity::{Part, SliceId};
use sublet_protocol::ids::{ClusterId, DeviceId, NodeId};

use super::Keep;

/// Where a GPU is.
pub(crate) type Device = (ClusterId, NodeId, DeviceId);

/// The GPU of a slice.
pub(crate) const fn device(slice: &SliceId) -> Device {
    (slice.cluster, slice.node, slice.device)
}

/// Numbers of GPUs, which an index remembers.
#[derive(Debug, Clone, Default)]
pub(crate) struct Devices {
    numbers: BTreeMap<Device, (u32, usize)>,
    free: Vec<u32>,
    len: u32,
}

impl Devices {
    /// The number of a GPU, which is in use once more.
    pub(crate) fn take(&mut self, device: Device) -> u32 {
        let (free, len) = (&mut self.free, &mut self.len);
        let (number, uses) = self.numbers.entry(device).or_insert_with(|| {
            let number = free.pop().unwrap_or_else(|| {
                *len += 1;
                *len - 1
            });
            (number, 0)
        });
        *uses += 1;
        *number
    }

    /// The GPU is in use once less.
    pub(crate) fn give_back(&mut self, device: &Device) {
        let Some((number, uses)) = self.numbers.get_mut(device) else { return };
        *uses -= 1;
        if *uses == 0 {
            self.free.push(*number);
            self.numbers.remove(device);
        }
    }

    fn find(&self, device: &Device) -> Option<u32> {
        self.numbers.get(device).map(|(number, _)| *number)
    }
}

/// No span.
const NONE: u32 = u32::MAX;

#[derive(Debug, Clone, Copy)]
struct Span {
    part: Part,
    keep: Keep,
    next: u32,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Keeps<'a> {
    known: Option<&'a Devices>,
    /// GPUs that an index has no number for.
    more: BTreeMap<Device, u32>,
    /// By number: the first span.
    heads: Vec<u32>,
    spans: Vec<Span>,
}

impl<'a> Keeps<'a> {
    /// Nobody keeps anything. The devices are those of an index.
    pub(super) fn new(known: Option<&'a Devices>) -> Keeps<'a> {
        let count = known.map_or(0, |known| at(known.len));
        Keeps { known, more: BTreeMap::new(), heads: vec![NONE; count], spans: Vec::new() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    fn find(&self, slice: &SliceId) -> Option<u32> {
        let device = device(slice);
        let known = self.known.and_then(|known| known.find(&device));
        known.or_else(|| self.more.get(&device).copied())
    }

    /// The number of a slice's GPU.
    pub(super) fn number(&mut self, slice: &SliceId) -> u32 {
        let known = self.known.and_then(|known| known.find(&device(slice)));
        known.unwrap_or_else(|| {
            let heads = &mut self.heads;
            *self.more.entry(device(slice)).or_insert_with(|| {
                heads.push(NONE);
                u32::try_from(heads.len() - 1).unwrap_or(NONE)
            })
        })
    }

    /// Someone keeps a part of the GPU with this number.
    pub(super) fn add(&mut self, number: u32, part: Part, keep: Keep) {
        let Some(head) = self.heads.get_mut(at(number)) else { return };
        let fresh = u32::try_from(self.spans.len()).unwrap_or(NONE);
        self.spans.push(Span { part, keep, next: std::mem::replace(head, fresh) });
    }

    /// Who keeps the slice, or a part of the same hardware, in no order.
    pub(super) fn on(&self, slice: SliceId) -> impl Iterator<Item = &Keep> {
        self.on_part(self.find(&slice).unwrap_or(NONE), slice.part)
    }

    /// As [`Keeps::on`], by the number of the slice's GPU.
    pub(super) fn on_part(&self, number: u32, part: Part) -> impl Iterator<Item = &Keep> {
        let mut next = self.heads.get(at(number)).copied().unwrap_or(NONE);
        let spans = std::iter::from_fn(move || {
            let span = self.spans.get(at(next))?;
            next = span.next;
            Some(span)
        });
        spans.filter(move |span| span.part.overlaps(part)).map(|span| &span.keep)
    }
}

fn at(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
