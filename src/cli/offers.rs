//! `sublet offers`: idle GPUs that can be leased now.

use clap::Args;
use sublet_protocol::api::{OfferPage, OfferPrice, OfferView};
use sublet_protocol::ids::{ClusterId, GpuModel};
use sublet_protocol::requests::Tier;
use sublet_protocol::units::{GpuMilli, MiB, Seconds};

use super::amounts::{self, show_money, word};
use super::global::Context;
use crate::client::Query;
use crate::failure::Outcome;
use crate::output::{Column, Table};
use crate::units::{MemoryRange, parse_memory_range, show_gpus, show_memory, show_seconds};

/// Show idle GPUs that can be leased now, alike ones counted together.
#[derive(Debug, Args)]
pub(super) struct Offers {
    /// Only this GPU model.
    #[arg(long, value_parser = amounts::model)]
    model: Option<GpuModel>,
    /// Only this cluster.
    #[arg(long, value_parser = amounts::cluster)]
    cluster: Option<ClusterId>,
    /// Only with at least this much device memory, as 20GiB, or within a range, as 20GiB..48GiB.
    #[arg(long, value_parser = parse_memory_range, value_name = "SIZE", allow_negative_numbers = true)]
    memory: Option<MemoryRange>,
    /// Only where at least this many alike ones are free.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..), allow_negative_numbers = true)]
    count: Option<u32>,
    /// Prices for this tier.
    #[arg(long, value_parser = amounts::tier(), default_value = "standard")]
    tier: Tier,
}

const COLUMNS: [Column; 14] = [
    Column::text("GPU"),
    Column::number("MEM"),
    Column::number("SHARE"),
    Column::number("FREE"),
    Column::number("OF"),
    Column::text("CLUSTER"),
    Column::text("REGION"),
    Column::number("PRICE/GPU-H"),
    Column::number("IDLE-FOR"),
    Column::number("NOTICE"),
    Column::text("ISOLATION").wide(),
    Column::number("CPU").wide(),
    Column::number("HOST-MEM").wide(),
    Column::text("OFFER").wide(),
];

impl Offers {
    /// Prints them.
    pub(super) fn run(self, context: &Context) -> Outcome<()> {
        let query = Query::new()
            .with("model", self.model)
            .with("cluster", self.cluster)
            .with("memory", self.memory.map(|range| range.least.get()))
            .with("count", self.count);
        let mut page = context.client()?.offers(&query)?;
        let mut table = Table::new(&COLUMNS, "no GPU is on offer");
        let most = self.memory.and_then(|range| range.most);
        if let Some(most) = most {
            at_most(&mut page, most);
        }
        for offer in &page.items {
            table.row(row(offer, self.tier));
        }
        table.footer(footer(&page));
        context.printer.list(&page, &table)
    }
}

/// Leaves out what has more device memory than `most`, which the API does not ask for, as if it did.
fn at_most(page: &mut OfferPage, most: MiB) {
    let free = |page: &OfferPage| page.items.iter().map(|offer| offer.free).sum::<u32>();
    let before = free(page);
    page.items.retain(|offer| offer.memory <= most.get());
    let removed = before.saturating_sub(free(page));
    page.shown = page.shown.saturating_sub(removed);
    if let Some(memory) = page.filtered.iter_mut().find(|filter| filter.filter == "memory") {
        memory.removed = memory.removed.saturating_add(removed);
    }
}

fn row(offer: &OfferView, tier: Tier) -> [String; 14] {
    let open = offer.free.saturating_add(offer.kept).saturating_add(offer.closed);
    let all = open.saturating_add(offer.leased);
    [
        offer.model.to_string(),
        show_memory(MiB::new(offer.memory)),
        show_gpus(GpuMilli::new(offer.gpu)),
        offer.free.to_string(),
        all.to_string(),
        offer.cluster.to_string(),
        offer.region.to_string(),
        price(&offer.prices, tier),
        show_seconds(offer.idle_for.p50),
        show_seconds(Seconds::new(offer.recall_notice)),
        word(&offer.isolation),
        show_gpus(GpuMilli::new(offer.cpu)),
        show_memory(MiB::new(offer.host_memory)),
        offer.id.clone(),
    ]
}

fn price(prices: &[OfferPrice], tier: Tier) -> String {
    let posted = prices.iter().find(|price| price.tier == tier);
    posted.map_or_else(
        || "none".to_owned(),
        |price| {
            format!("{} {}", show_money(price.per_gpu_hour.amount), price.per_gpu_hour.currency)
        },
    )
}

/// What was shown of what there is, and which filter removed the rest.
fn footer(page: &OfferPage) -> String {
    let removed = page.filtered.iter().filter(|filter| filter.removed > 0);
    let removed =
        removed.map(|filter| format!("{} removed by --{}", filter.removed, filter.filter));
    let closed: u32 = page.items.iter().map(|offer| offer.closed).sum();
    let closed =
        (closed > 0).then(|| format!("{closed} more on nodes where nothing new is put now"));
    let shown = format!("{} of {} free slices", page.shown, page.total);
    std::iter::once(shown).chain(removed).chain(closed).collect::<Vec<_>>().join("; ")
}
