//! Reading and writing weights takes a buffer, and no copy of a tensor. A process of its own: the
//! system counts the memory of all its threads.
#![cfg(target_os = "linux")]

use std::collections::BTreeMap;

use rekindle_models::weights::{load, save, stored};
use rekindle_models::{BertConfig, ModelOptions, build_bert};
use rekindle_program::DType;

/// Far more than the buffers of reading and writing, far less than the largest tensor.
const MOST: u64 = 8 << 20;

/// The most memory that the process had at once since the last call.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux has it");
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().nth(1));
    std::fs::write("/proc/self/clear_refs", "5").expect("a process may forget its own peak");
    kib.expect("a number").parse::<u64>().expect("a number") * 1024
}

#[test]
fn no_tensor_is_copied() {
    let config = BertConfig { vocab: 500_000, ..BertConfig::new(32, 1, 2) };
    let model = build_bert("wide", config, &ModelOptions::default()).expect("it builds");
    let size = |tensor: &rekindle_program::Tensor| tensor.len() * DType::F32.size();
    let largest = model.program.tensors.iter().map(size).max().unwrap_or(0) as u64;
    assert!(largest > 7 * MOST, "{largest}");
    let mut memory: BTreeMap<_, _> = stored(&model)
        .into_iter()
        .map(|s| (s.tensor, vec![0x5au8; size(model.program.tensor(s.tensor))]))
        .collect();
    let name = format!("rekindle-memory-{}.safetensors", std::process::id());
    let path = std::env::temp_dir().join(name);
    peak();
    let before = peak();
    save(&path, &model, |id, take| take(&memory[&id])).expect("written");
    let saving = peak() - before;
    load(&path, &model, |id, fill| fill(memory.get_mut(&id).expect("it is there"))).expect("read");
    let loading = peak() - before;
    std::fs::remove_file(&path).expect("it can go");
    assert!(saving < MOST && loading < MOST, "{saving} and {loading}");
}
