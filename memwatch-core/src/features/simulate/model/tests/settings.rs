//! `PYTORCH_CUDA_ALLOC_CONF` is parsed as PyTorch parses it, and errors name the wrong part.

use super::MIB;
use crate::features::simulate::model::Settings;

fn rounded(setting: &str, bytes: u64) -> u64 {
    Settings::parse(setting).expect("a setting").rounded(bytes)
}

#[test]
fn sizes_are_rounded_to_512_bytes_or_to_divisions_of_powers_of_two() {
    for (setting, bytes, all) in [
        ("", 1, 512),
        ("", 513, 1024),
        ("roundup_power2_divisions:4", 1200, 1536),
        ("roundup_power2_divisions:4", 2049, 2560),
        ("roundup_power2_divisions:4", 5 * MIB + 1, 6 * MIB),
        ("roundup_power2_divisions:4", 4 * MIB, 4 * MIB),
        ("roundup_power2_divisions:8", 2048, 2048),
        ("roundup_power2_divisions:[256:1,512:2,1024:4,>:8]", 300 * MIB + 1, 300 * MIB + 512),
        ("roundup_power2_divisions:[256:1,512:2,1024:4,>:8]", 513 * MIB, 768 * MIB),
        ("roundup_power2_divisions:[256:1,512:2,1024:4,>:8]", 2049 * MIB, 2304 * MIB),
    ] {
        assert_eq!(rounded(setting, bytes), all, "{bytes} with {setting}");
    }
}

#[test]
fn allocator_settings_round_trip_through_text() {
    for setting in [
        "",
        "expandable_segments:True",
        "max_split_size_mb:128,garbage_collection_threshold:0.8,roundup_power2_divisions:4",
        "max_non_split_rounding_mb:64,large_segment_size_mb:40,per_process_memory_fraction:0.5",
        "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]",
    ] {
        let settings = Settings::parse(setting).expect("a setting");
        assert_eq!(Settings::parse(&settings.to_string()), Ok(settings.clone()), "{setting}");
        if !setting.contains('[') {
            assert_eq!(settings.to_string(), setting);
        }
    }
}

#[test]
fn allocator_settings_errors_state_the_accepted_values() {
    for (setting, sentence) in [
        ("max_split_size:128", "unknown allocator setting max_split_size;"),
        ("max_split_size_mb:19", "max_split_size_mb must be an integer of at least 20, not 19"),
        (
            "max_split_size_mb:30,large_segment_size_mb:40",
            "max_split_size_mb:30 is smaller than large_segment_size_mb:40",
        ),
        ("large_segment_size_mb:40,max_non_split_rounding_mb:30", "max_non_split_rounding_mb:30 is smaller than"),
        ("large_segment_size_mb:10", "large_segment_size_mb must be an integer above 10, not 10"),
        ("large_segment_size_mb:33,expandable_segments:True", "an even number with expandable_segments:True, not 33"),
        ("expandable_segments:yes", "must be True or False, not yes"),
        ("garbage_collection_threshold:1", "between 0 and 1"),
        ("roundup_power2_divisions:3", "a power of two"),
        ("roundup_power2_divisions:[256]", "a power of two"),
        ("backend:cudaMallocAsync", "backend:cudaMallocAsync cannot be simulated"),
        ("expandable_segments", "unknown allocator setting expandable_segments;"),
    ] {
        let error = Settings::parse(setting).expect_err("it is wrong").to_string();
        assert!(error.contains(sentence), "{setting}: {error}");
    }
    assert_eq!(Settings::parse("backend:native,pinned_use_background_threads:True"), Ok(Settings::default()));
}
