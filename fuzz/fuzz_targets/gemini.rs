#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| callboard::fuzzing::run("gemini", data));
