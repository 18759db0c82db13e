//! Fields have names. Formats that know lists take one for a struct, its items for the fields in the
//! order in which they happen to be declared: this adapter lets everything through but that, at any
//! depth.
//!
//! What serde buffers before it knows the type (`untagged`, `flatten`, tags inside) is not seen: no body
//! is of such a type.

use std::fmt;

use serde::Deserializer;
use serde::de::{DeserializeSeed, EnumAccess, Error, MapAccess, SeqAccess, VariantAccess, Visitor};

/// What is wrong with a list in the place of an object.
pub(crate) const LIST: &str = "a list was sent, an object with named fields is wanted: {…}";

/// What the value is read as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Something with named fields.
    Fields,
    /// Anything else.
    Other,
}

/// Passes on everything, with structs from objects only.
#[derive(Debug)]
pub(crate) struct Named<T>(pub(crate) T);

struct Through<V> {
    visitor: V,
    kind: Kind,
}

fn through<V>(visitor: V) -> Through<V> {
    Through { visitor, kind: Kind::Other }
}

fn fields<V>(visitor: V) -> Through<V> {
    Through { visitor, kind: Kind::Fields }
}

macro_rules! pass_on {
    ($($method:ident($($arg:ident: $type:ty),*);)*) => {$(
        fn $method<V: Visitor<'de>>(self, $($arg: $type,)* visitor: V)
            -> Result<V::Value, D::Error>
        {
            self.0.$method($($arg,)* through(visitor))
        }
    )*};
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Named<D> {
    type Error = D::Error;

    pass_on! {
        deserialize_any();
        deserialize_bool();
        deserialize_i8();
        deserialize_i16();
        deserialize_i32();
        deserialize_i64();
        deserialize_i128();
        deserialize_u8();
        deserialize_u16();
        deserialize_u32();
        deserialize_u64();
        deserialize_u128();
        deserialize_f32();
        deserialize_f64();
        deserialize_char();
        deserialize_str();
        deserialize_string();
        deserialize_bytes();
        deserialize_byte_buf();
        deserialize_option();
        deserialize_unit();
        deserialize_unit_struct(name: &'static str);
        deserialize_newtype_struct(name: &'static str);
        deserialize_seq();
        deserialize_tuple(len: usize);
        deserialize_tuple_struct(name: &'static str, len: usize);
        deserialize_map();
        deserialize_enum(name: &'static str, variants: &'static [&'static str]);
        deserialize_identifier();
        deserialize_ignored_any();
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        names: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0.deserialize_struct(name, names, fields(visitor))
    }

    fn is_human_readable(&self) -> bool {
        self.0.is_human_readable()
    }
}

macro_rules! visit {
    ($($method:ident($type:ty);)*) => {$(
        fn $method<E: Error>(self, value: $type) -> Result<V::Value, E> {
            self.visitor.$method(value)
        }
    )*};
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Through<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.visitor.expecting(f)
    }

    visit! {
        visit_bool(bool);
        visit_i8(i8);
        visit_i16(i16);
        visit_i32(i32);
        visit_i64(i64);
        visit_i128(i128);
        visit_u8(u8);
        visit_u16(u16);
        visit_u32(u32);
        visit_u64(u64);
        visit_u128(u128);
        visit_f32(f32);
        visit_f64(f64);
        visit_char(char);
        visit_str(&str);
        visit_borrowed_str(&'de str);
        visit_string(String);
        visit_bytes(&[u8]);
        visit_borrowed_bytes(&'de [u8]);
        visit_byte_buf(Vec<u8>);
    }

    fn visit_none<E: Error>(self) -> Result<V::Value, E> {
        self.visitor.visit_none()
    }

    fn visit_unit<E: Error>(self) -> Result<V::Value, E> {
        self.visitor.visit_unit()
    }

    fn visit_some<D: Deserializer<'de>>(self, inner: D) -> Result<V::Value, D::Error> {
        self.visitor.visit_some(Named(inner))
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, inner: D) -> Result<V::Value, D::Error> {
        self.visitor.visit_newtype_struct(Named(inner))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<V::Value, A::Error> {
        match self.kind {
            Kind::Fields => Err(A::Error::custom(LIST)),
            Kind::Other => self.visitor.visit_seq(Named(items)),
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, entries: A) -> Result<V::Value, A::Error> {
        self.visitor.visit_map(Named(entries))
    }

    fn visit_enum<A: EnumAccess<'de>>(self, variant: A) -> Result<V::Value, A::Error> {
        self.visitor.visit_enum(Named(variant))
    }
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Named<S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, inner: D) -> Result<S::Value, D::Error> {
        self.0.deserialize(Named(inner))
    }
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for Named<A> {
    type Error = A::Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, A::Error> {
        self.0.next_element_seed(Named(seed))
    }

    fn size_hint(&self) -> Option<usize> {
        self.0.size_hint()
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Named<A> {
    type Error = A::Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, A::Error> {
        self.0.next_key_seed(seed)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        self.0.next_value_seed(Named(seed))
    }

    fn size_hint(&self) -> Option<usize> {
        self.0.size_hint()
    }
}

impl<'de, A: EnumAccess<'de>> EnumAccess<'de> for Named<A> {
    type Error = A::Error;
    type Variant = Named<A::Variant>;

    fn variant_seed<S: DeserializeSeed<'de>>(
        self,
        seed: S,
    ) -> Result<(S::Value, Named<A::Variant>), A::Error> {
        self.0.variant_seed(seed).map(|(value, variant)| (value, Named(variant)))
    }
}

impl<'de, A: VariantAccess<'de>> VariantAccess<'de> for Named<A> {
    type Error = A::Error;

    fn unit_variant(self) -> Result<(), A::Error> {
        self.0.unit_variant()
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, A::Error> {
        self.0.newtype_variant_seed(Named(seed))
    }

    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, A::Error> {
        self.0.tuple_variant(len, through(visitor))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        names: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, A::Error> {
        self.0.struct_variant(names, fields(visitor))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;

    use super::*;

    #[derive(Debug, PartialEq, Eq, Deserialize)]
    struct Point {
        x: u8,
        y: Option<u8>,
    }

    #[derive(Debug, PartialEq, Eq, Deserialize)]
    struct Pair(u8, u8);

    #[derive(Debug, PartialEq, Eq, Deserialize)]
    struct Only(Point);

    #[derive(Debug, PartialEq, Eq, Deserialize)]
    enum Choice {
        Nothing,
        One(Point),
        Two(u8, Point),
        Named { point: Point },
    }

    #[derive(Debug, PartialEq, Eq, Deserialize)]
    struct All {
        #[serde(default)]
        some: Option<Point>,
        #[serde(default)]
        list: Vec<Point>,
        #[serde(default)]
        map: BTreeMap<String, Point>,
        #[serde(default)]
        pair: Option<Pair>,
        #[serde(default)]
        only: Option<Only>,
        #[serde(default)]
        choice: Option<Choice>,
        #[serde(default)]
        tuple: Option<(u8, Point)>,
    }

    fn read(text: &str) -> Result<All, serde_json::Error> {
        All::deserialize(Named(&mut serde_json::Deserializer::from_str(text)))
    }

    #[test]
    fn what_has_no_list_for_a_struct_is_read_as_ever() {
        for text in [
            "{}",
            r#"{"some":{"x":1,"y":2},"list":[{"x":1},{"x":2,"y":null}],"map":{"a":{"x":1}}}"#,
            r#"{"pair":[1,2],"only":{"x":1},"choice":"Nothing","tuple":[1,{"x":2}]}"#,
            r#"{"choice":{"One":{"x":1}}}"#,
            r#"{"choice":{"Two":[1,{"x":1}]}}"#,
            r#"{"choice":{"Named":{"point":{"x":1}}}}"#,
        ] {
            let plain: All = serde_json::from_str(text).unwrap();
            assert_eq!(read(text).unwrap(), plain, "{text}");
        }
    }

    #[test]
    fn a_list_for_a_struct_is_refused_wherever_it_stands() {
        for text in [
            "[]",
            r#"{"some":[1,2]}"#,
            r#"{"list":[{"x":1},[1,2]]}"#,
            r#"{"map":{"a":[1,2]}}"#,
            r#"{"only":[1,2]}"#,
            r#"{"choice":{"One":[1,2]}}"#,
            r#"{"choice":{"Two":[1,[1,2]]}}"#,
            r#"{"choice":{"Named":[{"x":1}]}}"#,
            r#"{"choice":{"Named":{"point":[1,2]}}}"#,
            r#"{"tuple":[1,[1,2]]}"#,
        ] {
            assert!(serde_json::from_str::<All>(text).is_ok(), "{text} shows nothing");
            let error = read(text).unwrap_err().to_string();
            assert!(error.starts_with(LIST), "{text}: {error}");
        }
    }
}
