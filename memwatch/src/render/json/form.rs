//! Serialises a view for a report: as its fields specify ([`memwatch_core::words::json`]), with
//! dates and seconds instead of nanoseconds of the kernel's clock.
//!
//! The adapter forwards each value to the output serializer. It inspects a field's value before it
//! writes the field's name.

use std::fmt;

use memwatch_core::words::json::{ReportForm, form, name_of};
use serde::ser::{
    Impossible, SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant, SerializeTuple,
    SerializeTupleStruct, SerializeTupleVariant,
};
use serde::{Serialize, Serializer};

use crate::render::json::overhead::seconds;
use crate::render::wall_clock::WallClock;

/// A value and its representation in the report.
pub(crate) struct Formed<'a, T: ?Sized> {
    value: &'a T,
    form: ReportForm,
    clock: &'a WallClock,
}

impl<'a, T: ?Sized> Formed<'a, T> {
    /// Wraps a whole report. `clock` converts its times.
    pub(crate) const fn new(value: &'a T, clock: &'a WallClock) -> Self {
        Self { value, form: ReportForm::Same, clock }
    }
}

impl<T: ?Sized + Serialize> Serialize for Formed<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.value.serialize(Through { inner: serializer, form: self.form, clock: self.clock })
    }
}

/// Adapter between a value, or a part of it, and the output serializer.
struct Through<'a, S> {
    inner: S,
    form: ReportForm,
    clock: &'a WallClock,
}

impl<'a, S> Through<'a, S> {
    /// Wraps a value that is nested in this one.
    const fn formed<'v, T: ?Sized>(&self, value: &'v T) -> Formed<'v, T>
    where
        'a: 'v,
    {
        Formed { value, form: self.form, clock: self.clock }
    }

    /// Wraps a compound part that `inner` writes.
    fn part<P, E>(self, begin: impl FnOnce(S) -> Result<P, E>) -> Result<Through<'a, P>, E> {
        Ok(Through { inner: begin(self.inner)?, form: ReportForm::Same, clock: self.clock })
    }
}

/// Forwards scalar values unchanged.
macro_rules! pass_on {
    ($($method:ident: $type:ty),*) => {$(
        fn $method(self, value: $type) -> Result<S::Ok, S::Error> {
            self.inner.$method(value)
        }
    )*};
}

impl<'a, S: Serializer> Serializer for Through<'a, S> {
    type Ok = S::Ok;
    type Error = S::Error;
    type SerializeSeq = Through<'a, S::SerializeSeq>;
    type SerializeTuple = Through<'a, S::SerializeTuple>;
    type SerializeTupleStruct = Through<'a, S::SerializeTupleStruct>;
    type SerializeTupleVariant = Through<'a, S::SerializeTupleVariant>;
    type SerializeMap = Through<'a, S::SerializeMap>;
    type SerializeStruct = Through<'a, S::SerializeMap>;
    type SerializeStructVariant = Through<'a, S::SerializeStructVariant>;

    pass_on! {
        serialize_bool: bool, serialize_i8: i8, serialize_i16: i16, serialize_i32: i32, serialize_i64: i64, serialize_i128: i128,
        serialize_u8: u8, serialize_u16: u16, serialize_u32: u32, serialize_u128: u128, serialize_f32: f32, serialize_f64: f64,
        serialize_char: char, serialize_str: &str, serialize_bytes: &[u8], serialize_unit_struct: &'static str
    }

    fn serialize_u64(self, value: u64) -> Result<S::Ok, S::Error> {
        match self.form {
            ReportForm::Date => self.inner.serialize_str(&self.clock.rfc3339(value)),
            ReportForm::Seconds => self.inner.serialize_f64(seconds(value)),
            ReportForm::Same | ReportForm::Apart => self.inner.serialize_u64(value),
        }
    }

    fn serialize_none(self) -> Result<S::Ok, S::Error> {
        self.inner.serialize_none()
    }

    fn serialize_unit(self) -> Result<S::Ok, S::Error> {
        self.inner.serialize_unit()
    }

    fn serialize_some<T: ?Sized + Serialize>(self, value: &T) -> Result<S::Ok, S::Error> {
        let value = self.formed(value);
        self.inner.serialize_some(&value)
    }

    fn serialize_newtype_struct<T: ?Sized + Serialize>(self, name: &'static str, value: &T) -> Result<S::Ok, S::Error> {
        let form = form(name).map_or(self.form, |(form, _)| form);
        self.inner.serialize_newtype_struct(name, &Formed { value, form, clock: self.clock })
    }

    fn serialize_unit_variant(self, name: &'static str, index: u32, variant: &'static str) -> Result<S::Ok, S::Error> {
        self.inner.serialize_unit_variant(name, index, variant)
    }

    fn serialize_newtype_variant<T: ?Sized + Serialize>(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<S::Ok, S::Error> {
        let value = self.formed(value);
        self.inner.serialize_newtype_variant(name, index, variant, &value)
    }

    fn serialize_seq(self, length: Option<usize>) -> Result<Self::SerializeSeq, S::Error> {
        self.part(|inner| inner.serialize_seq(length))
    }

    fn serialize_tuple(self, length: usize) -> Result<Self::SerializeTuple, S::Error> {
        self.part(|inner| inner.serialize_tuple(length))
    }

    fn serialize_tuple_struct(self, name: &'static str, length: usize) -> Result<Self::SerializeTupleStruct, S::Error> {
        self.part(|inner| inner.serialize_tuple_struct(name, length))
    }

    fn serialize_tuple_variant(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
        length: usize,
    ) -> Result<Self::SerializeTupleVariant, S::Error> {
        self.part(|inner| inner.serialize_tuple_variant(name, index, variant, length))
    }

    fn serialize_map(self, length: Option<usize>) -> Result<Self::SerializeMap, S::Error> {
        self.part(|inner| inner.serialize_map(length))
    }

    /// Serialises a struct as a map, because fields may be renamed or left out.
    fn serialize_struct(self, _name: &'static str, _length: usize) -> Result<Self::SerializeStruct, S::Error> {
        self.part(|inner| inner.serialize_map(None))
    }

    fn serialize_struct_variant(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
        length: usize,
    ) -> Result<Self::SerializeStructVariant, S::Error> {
        self.part(|inner| inner.serialize_struct_variant(name, index, variant, length))
    }
}

/// Lists: each element is wrapped.
macro_rules! elements {
    ($($list:ident $method:ident),*) => {$(
        impl<P: $list> $list for Through<'_, P> {
            type Ok = P::Ok;
            type Error = P::Error;

            fn $method<T: ?Sized + Serialize>(&mut self, value: &T) -> Result<(), P::Error> {
                let value = self.formed(value);
                self.inner.$method(&value)
            }

            fn end(self) -> Result<P::Ok, P::Error> {
                self.inner.end()
            }
        }
    )*};
}

elements!(SerializeSeq serialize_element, SerializeTuple serialize_element, SerializeTupleStruct serialize_field, SerializeTupleVariant serialize_field);

impl<P: SerializeMap> SerializeMap for Through<'_, P> {
    type Ok = P::Ok;
    type Error = P::Error;

    fn serialize_key<T: ?Sized + Serialize>(&mut self, key: &T) -> Result<(), P::Error> {
        self.inner.serialize_key(key)
    }

    fn serialize_value<T: ?Sized + Serialize>(&mut self, value: &T) -> Result<(), P::Error> {
        let value = self.formed(value);
        self.inner.serialize_value(&value)
    }

    /// Fields of a flattened struct also arrive here.
    fn serialize_entry<K: ?Sized + Serialize, V: ?Sized + Serialize>(
        &mut self,
        key: &K,
        value: &V,
    ) -> Result<(), P::Error> {
        let formed = self.formed(value);
        match value.serialize(FormProbe) {
            Err(_) => self.inner.serialize_entry(key, &formed),
            Ok((ReportForm::Apart, _)) => Ok(()),
            Ok((_, Some(name))) => self.inner.serialize_entry(name, &formed),
            Ok((form, None)) => self.inner.serialize_entry(&name_of(&KeyText(key).to_string(), form), &formed),
        }
    }

    fn end(self) -> Result<P::Ok, P::Error> {
        self.inner.end()
    }
}

impl<P: SerializeMap> SerializeStruct for Through<'_, P> {
    type Ok = P::Ok;
    type Error = P::Error;

    fn serialize_field<T: ?Sized + Serialize>(&mut self, key: &'static str, value: &T) -> Result<(), P::Error> {
        self.serialize_entry(key, value)
    }

    fn end(self) -> Result<P::Ok, P::Error> {
        self.inner.end()
    }
}

impl<P: SerializeStructVariant> SerializeStructVariant for Through<'_, P> {
    type Ok = P::Ok;
    type Error = P::Error;

    fn serialize_field<T: ?Sized + Serialize>(&mut self, key: &'static str, value: &T) -> Result<(), P::Error> {
        let value = self.formed(value);
        self.inner.serialize_field(key, &value)
    }

    fn end(self) -> Result<P::Ok, P::Error> {
        self.inner.end()
    }
}

/// Text of a map key.
struct KeyText<'a, K: ?Sized>(&'a K);

impl<K: ?Sized + Serialize> fmt::Display for KeyText<'_, K> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.serialize(formatter)
    }
}

/// Serializer that only detects whether a value is marked with a form.
struct FormProbe;

type MarkedForm = (ReportForm, Option<&'static str>);
type None = Impossible<MarkedForm, fmt::Error>;

macro_rules! not_marked {
    ($($method:ident $(<$of:ident>)? ($($type:ty),*) -> $ok:ty;)*) => {$(
        fn $method $(<$of: ?Sized + Serialize>)? (self, $(_: $type),*) -> Result<$ok, fmt::Error> {
            Err(fmt::Error)
        }
    )*};
}

impl Serializer for FormProbe {
    type Ok = MarkedForm;
    type Error = fmt::Error;
    type SerializeSeq = None;
    type SerializeTuple = None;
    type SerializeTupleStruct = None;
    type SerializeTupleVariant = None;
    type SerializeMap = None;
    type SerializeStruct = None;
    type SerializeStructVariant = None;

    fn serialize_newtype_struct<T: ?Sized + Serialize>(
        self,
        name: &'static str,
        _: &T,
    ) -> Result<MarkedForm, fmt::Error> {
        form(name).ok_or(fmt::Error)
    }

    fn collect_str<T: ?Sized + fmt::Display>(self, _: &T) -> Result<MarkedForm, fmt::Error> {
        Err(fmt::Error)
    }

    not_marked! {
        serialize_bool(bool) -> MarkedForm; serialize_i8(i8) -> MarkedForm; serialize_i16(i16) -> MarkedForm; serialize_i32(i32) -> MarkedForm; serialize_i64(i64) -> MarkedForm;
        serialize_u8(u8) -> MarkedForm; serialize_u16(u16) -> MarkedForm; serialize_u32(u32) -> MarkedForm; serialize_u64(u64) -> MarkedForm;
        serialize_f32(f32) -> MarkedForm; serialize_f64(f64) -> MarkedForm; serialize_char(char) -> MarkedForm; serialize_str(&str) -> MarkedForm; serialize_bytes(&[u8]) -> MarkedForm;
        serialize_none() -> MarkedForm; serialize_some<T>(&T) -> MarkedForm; serialize_unit() -> MarkedForm; serialize_unit_struct(&'static str) -> MarkedForm;
        serialize_unit_variant(&'static str, u32, &'static str) -> MarkedForm;
        serialize_newtype_variant<T>(&'static str, u32, &'static str, &T) -> MarkedForm;
        serialize_seq(Option<usize>) -> None; serialize_tuple(usize) -> None; serialize_tuple_struct(&'static str, usize) -> None;
        serialize_tuple_variant(&'static str, u32, &'static str, usize) -> None; serialize_map(Option<usize>) -> None;
        serialize_struct(&'static str, usize) -> None; serialize_struct_variant(&'static str, u32, &'static str, usize) -> None;
    }
}

#[cfg(test)]
mod tests {
    use memwatch_core::words::json;

    use super::*;

    #[derive(Serialize)]
    struct View {
        #[serde(serialize_with = "json::tgid")]
        tgid: u32,
        #[serde(serialize_with = "json::date")]
        ended_ns: Option<u64>,
        #[serde(serialize_with = "json::since")]
        first_ns: Option<u64>,
        #[serde(serialize_with = "json::seconds")]
        processor_ns: u64,
        #[serde(serialize_with = "json::apart")]
        parts: [u64; 2],
        plain_ns: u64,
    }

    #[derive(Serialize)]
    struct Report {
        #[serde(flatten)]
        view: View,
        parts: u64,
    }

    #[test]
    fn json_form_of_a_view_is_the_same_nested_listed_or_flattened() {
        let clock = WallClock::utc(0);
        let view = || View {
            tgid: 7,
            ended_ns: None,
            first_ns: Some(1_500_000_000),
            processor_ns: 250_000_000,
            parts: [1, 2],
            plain_ns: 9,
        };
        let fields =
            r#""pid":7,"ended":null,"since":"1970-01-01T00:00:01.500000Z","processor_seconds":0.25,"plain_ns":9"#;
        let listed = serde_json::to_string(&Formed::new(&[view()], &clock)).expect("plain values");
        assert_eq!(listed, format!("[{{{fields}}}]"));
        let report = Report { view: view(), parts: 3 };
        let flattened = serde_json::to_string(&Formed::new(&report, &clock)).expect("plain values");
        assert_eq!(flattened, format!("{{{fields},\"parts\":3}}"));
    }
}
