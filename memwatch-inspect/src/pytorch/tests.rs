//! Arbitrary memory: what is read of it is refused, without panics or endless loops.

use proptest::collection::vec;
use proptest::prelude::*;

use super::{ReadRefusal, read};
use crate::memory::{MemoryAccess, words_of};

/// Address of the image.
const BASE: u64 = 0x5000_0000;

/// Bytes from [`BASE`] on.
#[derive(Debug)]
struct RandomImage(Vec<u8>);

impl MemoryAccess for RandomImage {
    fn fill(&self, address: u64, into: &mut [u8]) -> bool {
        let start = address.checked_sub(BASE).and_then(|start| usize::try_from(start).ok());
        let part = start.and_then(|start| self.0.get(start..start.checked_add(into.len())?));
        part.is_some_and(|part| {
            into.copy_from_slice(part);
            true
        })
    }
}

/// Returns words most of which are addresses in the image, as in a real process.
fn images() -> impl Strategy<Value = RandomImage> {
    let word = prop_oneof![
        4 => (0..1024u64).prop_map(|word| BASE + 8 * word),
        2 => 0..64u64,
        1 => Just(0),
        1 => Just(0x3f00_0000_0000_0000 | 4 << 8),
        1 => (1..9u64).prop_map(|count| count * 512),
        1 => any::<u64>(),
    ];
    vec(word, 1024).prop_map(|words| RandomImage(words.into_iter().flat_map(u64::to_le_bytes).collect()))
}

/// Writes a class's name, its type, its table and an object of it, one after another from this word
/// on. Returns the object's address.
fn put_object(image: &mut RandomImage, word: usize, class: &str) -> u64 {
    let at = |word: usize| BASE + 8 * word as u64;
    let mut words = vec![0, at(word + 8), at(word), 0, 0, at(word + 3)];
    words.resize(8, 0);
    let bytes: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).chain(class.bytes()).chain([0]).collect();
    image.0[8 * word..8 * word + bytes.len()].copy_from_slice(&bytes);
    at(word + 5)
}

fn put_word(image: &mut RandomImage, word: usize, value: u64) {
    image.0[8 * word..8 * word + 8].copy_from_slice(&value.to_le_bytes());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn arbitrary_memory_is_refused(mut image in images(), native: bool) {
        if native {
            let object = put_object(&mut image, 64, super::NATIVE);
            put_word(&mut image, 0, object);
        }
        prop_assert!(read(&image, BASE, None).is_err());
    }
}

fn zeros() -> RandomImage {
    RandomImage(vec![0; 8 * 4096])
}

#[test]
fn an_allocator_of_another_class_is_refused_by_its_name() {
    let mut image = zeros();
    let class = "N3c104cuda20CUDACachingAllocator15CudaMallocAsync24CudaMallocAsyncAllocatorE";
    let object = put_object(&mut image, 64, class);
    put_word(&mut image, 0, object);
    let refused = read(&image, BASE, None).expect_err("it keeps other books");
    assert_eq!(
        refused,
        ReadRefusal::Other("c10::cuda::CUDACachingAllocator::CudaMallocAsync::CudaMallocAsyncAllocator".into())
    );
    assert!(!refused.is_passing(), "another try is of no use");
    assert!(refused.to_string().contains("CudaMallocAsyncAllocator"), "{refused}");
}

#[test]
fn allocator_read_before_cuda_init_is_not_initialized() {
    assert_eq!(read(&zeros(), BASE, None), Err(ReadRefusal::NotInitialized));
    assert_eq!(read(&zeros(), BASE - 8, None), Err(ReadRefusal::Unreadable("the allocator's address")));
}

#[test]
fn allocator_with_empty_tables_is_not_initialized() {
    let mut image = zeros();
    let object = put_object(&mut image, 64, super::NATIVE);
    put_word(&mut image, 0, object);
    // {entries, slots - 1, {shift, most lookups, load factor of 0.5}, count}
    let table = [BASE + 8 * 2048, 0, 0x3f00_0000_0000_043f, 0];
    for (place, word) in table.into_iter().chain(table).enumerate() {
        put_word(&mut image, 100 + place, word);
    }
    assert_eq!(read(&image, BASE, None), Err(ReadRefusal::NotInitialized));
    // One block in a table without a device: the layout is a different one.
    put_word(&mut image, 101, 3);
    put_word(&mut image, 103, 1);
    assert!(matches!(read(&image, BASE, None), Err(ReadRefusal::NotRecognized(_))));
}

#[test]
fn an_object_that_is_laid_out_in_no_known_way_is_refused() {
    let mut image = zeros();
    let object = put_object(&mut image, 64, super::NATIVE);
    put_word(&mut image, 0, object);
    assert_eq!(words_of(&image.0[..8]), [object]);
    assert!(matches!(read(&image, BASE, None), Err(ReadRefusal::NotRecognized(_))));
}
