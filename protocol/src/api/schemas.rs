//! How ids, numbers and instants describe themselves in the OpenAPI document.

use std::borrow::Cow;

use utoipa::openapi::schema::{ObjectBuilder, Schema, SchemaType, Type};
use utoipa::openapi::{KnownFormat, RefOr, SchemaFormat};
use utoipa::{PartialSchema, ToSchema};

use super::{Time, Whole};
use crate::ids::{
    CellId, ClusterId, CommandId, DeviceId, GpuModel, LeaseId, NodeId, Project, Region, RequestId,
    RollbackId, TenantId,
};
use crate::names::DisplayName;
use crate::units::{Permille, Seconds};

const NAME: &str = "^[a-z0-9-]{1,32}$";
const DEVICE: &str = "^GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$";

macro_rules! text {
    ($pattern:expr, $($name:ty),+) => {$(
        impl PartialSchema for $name {
            fn schema() -> RefOr<Schema> {
                let text = ObjectBuilder::new().schema_type(SchemaType::new(Type::String));
                text.pattern(Some($pattern)).into()
            }
        }
        impl ToSchema for $name {}
    )+};
}

text!(NAME, CellId, ClusterId, GpuModel, NodeId, Project, Region, TenantId);
text!("^l-[0-7][0-9a-hjkmnp-tv-z]{25}$", LeaseId);
text!("^r-[0-7][0-9a-hjkmnp-tv-z]{25}$", RequestId);
text!("^b-[0-7][0-9a-hjkmnp-tv-z]{25}$", RollbackId);
text!("^c-[0-7][0-9a-hjkmnp-tv-z]{25}$", CommandId);
text!(DEVICE, DeviceId);
text!("^.{1,128}$", DisplayName);

impl PartialSchema for Time {
    fn schema() -> RefOr<Schema> {
        let text = ObjectBuilder::new().schema_type(SchemaType::new(Type::String));
        text.format(Some(SchemaFormat::KnownFormat(KnownFormat::DateTime))).into()
    }
}

impl ToSchema for Time {}

impl PartialSchema for Seconds {
    fn schema() -> RefOr<Schema> {
        let number = ObjectBuilder::new().schema_type(SchemaType::new(Type::Integer));
        number.minimum(Some(0_u64)).into()
    }
}

impl ToSchema for Seconds {}

impl PartialSchema for Permille {
    fn schema() -> RefOr<Schema> {
        let number = ObjectBuilder::new().schema_type(SchemaType::new(Type::Integer));
        number.minimum(Some(0_u64)).maximum(Some(1_000_u64)).into()
    }
}

impl ToSchema for Permille {}

impl<const MIN: u64, const MAX: u64> PartialSchema for Whole<MIN, MAX> {
    fn schema() -> RefOr<Schema> {
        let number = ObjectBuilder::new().schema_type(SchemaType::new(Type::Integer));
        number.minimum(Some(MIN)).maximum(Some(MAX)).into()
    }
}

impl<const MIN: u64, const MAX: u64> ToSchema for Whole<MIN, MAX> {
    fn name() -> Cow<'static, str> {
        format!("WholeFrom{MIN}To{MAX}").into()
    }
}
