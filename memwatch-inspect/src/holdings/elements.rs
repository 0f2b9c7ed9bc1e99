//! Tensor element types by their numbers in PyTorch (c10/core/ScalarType.h), which are never
//! reassigned.

/// Names of the types in `torch`, by number.
const NAMES: [&str; 46] = [
    "uint8",
    "int8",
    "int16",
    "int32",
    "int64",
    "float16",
    "float32",
    "float64",
    "complex32",
    "complex64",
    "complex128",
    "bool",
    "qint8",
    "quint8",
    "qint32",
    "bfloat16",
    "quint4x2",
    "quint2x4",
    "bits1x8",
    "bits2x4",
    "bits4x2",
    "bits8",
    "bits16",
    "float8_e5m2",
    "float8_e4m3fn",
    "float8_e5m2fnuz",
    "float8_e4m3fnuz",
    "uint16",
    "uint32",
    "uint64",
    "uint1",
    "uint2",
    "uint3",
    "uint4",
    "uint5",
    "uint6",
    "uint7",
    "int1",
    "int2",
    "int3",
    "int4",
    "int5",
    "int6",
    "int7",
    "float8_e8m0fnu",
    "float4_e2m1fn_x2",
];

/// Returns the name of a type by its number.
pub(super) fn name(number: u16) -> Option<&'static str> {
    NAMES.get(usize::from(number)).copied()
}

/// Returns the bytes per element, at least one.
pub(super) fn bytes(number: u16) -> u64 {
    match name(number).unwrap_or_default() {
        "int64" | "float64" | "complex64" | "uint64" => 8,
        "complex128" => 16,
        "int32" | "float32" | "complex32" | "qint32" | "uint32" => 4,
        "int16" | "float16" | "bfloat16" | "uint16" | "bits16" => 2,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_types_have_their_names_and_sizes() {
        let types =
            [(6, "float32", 4), (15, "bfloat16", 2), (4, "int64", 8), (11, "bool", 1), (24, "float8_e4m3fn", 1)];
        for (number, expected, size) in types {
            assert_eq!((name(number), bytes(number)), (Some(expected), size));
        }
        assert_eq!(name(999), None);
    }
}
