//! Files of every kind become batches; bad ones are named.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rekindle_data::{
    Ahead, BadFiles, Batches, DataError, DataOptions, Dataset, Features, IGNORED, ImageOptions,
    Wanted, split,
};
use rekindle_graph::Bytes;

/// A folder that disappears with the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path =
            std::env::temp_dir().join(format!("rekindle-data-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a writable temporary folder");
        Folder(path)
    }

    fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.join(name);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("writable");
        std::fs::write(&path, bytes).expect("writable");
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A `.npy` file of these bytes.
fn npy(descr: &str, shape: &str, values: &[u8]) -> Vec<u8> {
    let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n");
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend_from_slice(&(header.len() as u16).to_le_bytes());
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend_from_slice(values);
    bytes
}

fn floats(values: impl IntoIterator<Item = f32>) -> Vec<u8> {
    values.into_iter().flat_map(f32::to_le_bytes).collect()
}

/// A grey PNG of so many pixels, whose value grows from left to right.
fn png(width: u32, height: u32) -> Vec<u8> {
    let image = image::GrayImage::from_fn(width, height, |x, _| image::Luma([(x * 10) as u8]));
    let mut bytes = std::io::Cursor::new(Vec::new());
    image.write_to(&mut bytes, image::ImageFormat::Png).expect("memory takes it");
    bytes.into_inner()
}

const SMALL: Wanted = Wanted::Images { height: 4, width: 4, channels: 3, channels_first: false };

fn numbers(batch: &rekindle_data::Batch) -> &[f32] {
    match &batch.features {
        Features::Numbers(numbers) => numbers,
        Features::Ids(_) => panic!("ids where numbers should be"),
    }
}

fn evaluation(dataset: Dataset, batch: usize, bad_files: BadFiles) -> Batches {
    let all = (0..dataset.len() as u32).collect();
    Batches::evaluation(Arc::new(dataset), all, batch, bad_files)
}

#[test]
fn images_are_resized_cropped_and_normalised_by_class() {
    let folder = Folder::new("images");
    folder.write("cats/a.png", &png(8, 4));
    folder.write("dogs/b.png", &png(4, 4));
    folder.write("dogs/notes.txt", b"no image");
    let images = ImageOptions { mean: vec![0.5], deviation: vec![0.25], ..Default::default() };
    let options = DataOptions { images, ..DataOptions::default() };
    let dataset = Dataset::open(&folder.0, SMALL, &options).expect("images");
    assert_eq!(dataset.classes(), Some(&["cats".to_owned(), "dogs".to_owned()][..]));
    let mut batches = evaluation(dataset, 3, BadFiles::Refuse);
    let batch = batches.read(0).expect("readable");
    assert_eq!((batch.samples, &batch.labels[..]), (2, &[0, 1, IGNORED][..]));
    let normal = |value: f32| (value / 255.0 - 0.5) / 0.25;
    // The middle of eight columns, and all of four; the same in each of three channels.
    let row = |first: u32| (first..first + 4).flat_map(|x| [normal((x * 10) as f32); 3]);
    assert_eq!(numbers(&batch)[..12], row(2).collect::<Vec<_>>());
    assert_eq!(numbers(&batch)[48..60], row(0).collect::<Vec<_>>());
}

#[test]
fn what_is_random_in_an_image_is_drawn_from_the_seed() {
    let folder = Folder::new("random");
    folder.write("only/a.png", &png(16, 4));
    let images = ImageOptions { random_crop: true, flip: true, ..Default::default() };
    let options = DataOptions { images, ..DataOptions::default() };
    let read = |seed, number| {
        let dataset = Dataset::open(&folder.0, SMALL, &options).expect("images");
        let batches = Batches::training(Arc::new(dataset), vec![0], 1, seed, BadFiles::Refuse);
        batches.expect("a sample").read(number).expect("readable")
    };
    assert_eq!(read(1, 5), read(1, 5));
    let several: Vec<_> = (0..8).map(|number| numbers(&read(1, number)).to_vec()).collect();
    assert!(several.iter().any(|one| *one != several[0]), "epochs differ");
}

#[test]
fn bad_images_are_refused_or_skipped_and_named() {
    let folder = Folder::new("bad");
    folder.write("a/1.png", &png(4, 4));
    folder.write("a/2.png", b"no png at all");
    folder.write("b/3.jpg", &png(4, 4)[..40]);
    folder.write("b/4.png", &png(4, 4));
    let open = || Dataset::open(&folder.0, SMALL, &DataOptions::default()).expect("listed");
    let error = evaluation(open(), 4, BadFiles::Refuse).read(0).expect_err("a bad file");
    assert!(matches!(&error, DataError::BadFile { path, .. } if path.ends_with("a/2.png")));
    let batch = evaluation(open(), 4, BadFiles::Skip).read(0).expect("others stand in");
    assert_eq!(batch.labels, [0, 1, 1, 1]);
    let named: Vec<_> = batch.skipped.iter().map(|it| it.path.file_name()).collect();
    assert_eq!(named.len(), 3, "each time that it is met: {named:?}");
    std::fs::remove_file(folder.0.join("a/1.png")).expect("it can go");
    std::fs::remove_file(folder.0.join("b/4.png")).expect("it can go");
    let error = evaluation(open(), 2, BadFiles::Skip).read(0).expect_err("nothing is good");
    assert!(matches!(error, DataError::AllBad { tried: 2, .. }), "{error}");
}

#[test]
fn arrays_are_read_whichever_way_their_channels_stand() {
    let folder = Folder::new("arrays");
    let wanted = Wanted::Images { height: 1, width: 2, channels: 3, channels_first: false };
    let last: Vec<f32> = (0..12).map(|i| i as f32).collect();
    let first: Vec<f32> = [0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11].map(|i| i as f32).into();
    folder.write("labels.npy", &npy("<i8", "(2,)", &[1i64, 0].map(i64::to_le_bytes).concat()));
    for (shape, values) in [("(2, 1, 2, 3)", &last), ("(2, 3, 1, 2)", &first)] {
        folder.write("inputs.npy", &npy("<f4", shape, &floats(values.iter().copied())));
        let dataset = Dataset::open(&folder.0, wanted, &DataOptions::default()).expect("arrays");
        assert_eq!(dataset.class_count(), Some(2));
        let batch = evaluation(dataset, 2, BadFiles::Refuse).read(0).expect("readable");
        assert_eq!((numbers(&batch), &batch.labels[..]), (&last[..], &[1, 0][..]));
    }
}

#[test]
fn tokens_are_packed_and_labels_are_the_tokens_that_follow() {
    let folder = Folder::new("tokens");
    let raw: Vec<u8> = (0..11u16).flat_map(u16::to_le_bytes).collect();
    let path = folder.write("tokens.bin", &raw);
    let wanted = Wanted::Tokens { sequence: 3, vocab: 11 };
    let dataset = Dataset::open(&path, wanted, &DataOptions::default()).expect("tokens");
    assert_eq!(dataset.len(), 3);
    assert_eq!(split(&dataset, 0.34, 1), (vec![0, 1], vec![2]), "the end is held back");
    let batch = evaluation(dataset, 3, BadFiles::Refuse).read(0).expect("readable");
    assert_eq!(batch.features, Features::Ids((0..9).collect()));
    assert_eq!(batch.labels, (1..10).collect::<Vec<i64>>());
    let narrow = Wanted::Tokens { sequence: 3, vocab: 7 };
    let dataset = Dataset::open(&path, narrow, &DataOptions::default()).expect("tokens");
    let error = evaluation(dataset, 3, BadFiles::Skip).read(0).expect_err("a token of others");
    assert!(matches!(error, DataError::TokenOutOfRange { position: 7, token: 7, .. }), "{error}");
}

#[test]
fn an_epoch_has_every_sample_once_in_an_order_of_its_own() {
    let folder = Folder::new("order");
    let path =
        folder.write("tokens.bin", &(0..101u16).flat_map(u16::to_le_bytes).collect::<Vec<_>>());
    let wanted = Wanted::Tokens { sequence: 1, vocab: 101 };
    let dataset = Dataset::open(&path, wanted, &DataOptions::default()).expect("tokens");
    let all: Vec<u32> = (0..100).collect();
    let batches = Batches::training(Arc::new(dataset), all, 8, 3, BadFiles::Refuse);
    let mut batches = batches.expect("enough samples");
    assert_eq!(batches.per_epoch(), 12);
    let mut epoch = |epoch: u64| -> Vec<i64> {
        let ids = |number| match batches.read(number).expect("readable").features {
            Features::Ids(ids) => ids,
            Features::Numbers(_) => panic!("numbers where ids should be"),
        };
        (12 * epoch..12 * (epoch + 1)).flat_map(ids).collect()
    };
    let (first, second) = (epoch(0), epoch(1));
    assert_ne!(first, second);
    for mut ids in [first, second] {
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), 96, "no sample twice");
    }
}

#[test]
fn what_is_read_ahead_is_what_is_read() {
    let folder = Folder::new("ahead");
    let path =
        folder.write("tokens.bin", &(0..101u16).flat_map(u16::to_le_bytes).collect::<Vec<_>>());
    let wanted = Wanted::Tokens { sequence: 1, vocab: 101 };
    let dataset = Arc::new(Dataset::open(&path, wanted, &DataOptions::default()).expect("tokens"));
    let all: Vec<u32> = (0..100).collect();
    let batches = Batches::training(dataset, all, 8, 3, BadFiles::Refuse).expect("enough");
    let memory = Bytes(3 * batches.batch_bytes().get());
    let mut ahead = Ahead::start(batches.clone(), 5..20, memory).expect("room for two");
    let mut plain = batches.clone();
    for number in 5..20 {
        let (one, other) = (ahead.next_batch(), plain.read(number));
        assert_eq!(one.expect("readable"), other.expect("readable"));
    }
    assert!(matches!(ahead.next_batch(), Err(DataError::Ended)));
    let little = Ahead::start(batches.clone(), 0..1, batches.batch_bytes());
    assert!(matches!(little, Err(DataError::Memory { .. })));
    // One that is dropped in the middle lets its thread end.
    drop(Ahead::start(batches, 0..1000, memory).expect("room for two"));
}

fn open(path: &Path, wanted: Wanted) -> Result<Dataset, DataError> {
    Dataset::open(path, wanted, &DataOptions::default())
}

#[test]
fn what_is_missing_is_said() {
    let folder = Folder::new("missing");
    let text = Wanted::Tokens { sequence: 4, vocab: 9 };
    let error = open(&folder.0, text).err().expect("nothing there");
    assert!(error.to_string().contains(".txt"), "{error}");
    folder.write("a.txt", b"some text");
    assert!(matches!(open(&folder.0, text), Err(DataError::NoTokenizer)));
    assert!(matches!(open(&folder.0, SMALL), Err(DataError::Nothing { .. })));
    assert!(matches!(open(&folder.0.join("gone"), SMALL), Err(DataError::Read { .. })));
    let tokenizer = Some(folder.write("tokenizer.json", b"{\"no\": \"tokenizer\"}"));
    let options = DataOptions { tokenizer, ..DataOptions::default() };
    let error = Dataset::open(&folder.0, text, &options).err().expect("no tokenizer");
    assert!(matches!(error, DataError::Tokenizer { .. }), "{error}");
}

/// Faults of a tokenizer's file for which the library panics.
#[test]
fn a_tokenizer_with_a_fault_inside_is_refused() {
    let folder = Folder::new("faulty-tokenizer");
    folder.write("a.txt", b"a b a b a b a b");
    let ends = r#"{"version":"1.0","added_tokens":[],"normalizer":null,"decoder": "#;
    let map = concat!(
        r#"{"version":"1.0","truncation":null,"padding":null,"added_tokens":[],"#,
        r#""normalizer":{"type":"Precompiled","precompiled_charsmap":"AAAA"},"#,
        r#""pre_tokenizer":null,"post_processor":null,"decoder":null,"#,
        r#""model":{"type":"WordLevel","vocab":{"a":0},"unk_token":"a"}}"#
    );
    for text in [ends, map] {
        let tokenizer = Some(folder.write("tokenizer.json", text.as_bytes()));
        let options = DataOptions { tokenizer, ..DataOptions::default() };
        let wanted = Wanted::Tokens { sequence: 2, vocab: 10 };
        let error = Dataset::open(&folder.0, wanted, &options).err().expect("a fault");
        assert!(matches!(error, DataError::Tokenizer { .. }), "{error}");
    }
}

/// Whatever bytes a file has, reading it ends, with batches or an error.
mod any_bytes {
    use super::*;
    use proptest::prelude::*;

    /// Opens and reads everything, and does not care what comes of it.
    fn try_to_read(path: &Path, wanted: Wanted, options: &DataOptions) {
        if let Ok(dataset) = Dataset::open(path, wanted, options) {
            let _ = evaluation(dataset, 1, BadFiles::Skip).read(0);
        }
    }

    /// A good file with a few bytes changed, and perhaps cut short.
    fn damaged(good: Vec<u8>) -> impl Strategy<Value = Vec<u8>> {
        let len = good.len();
        let changes = prop::collection::vec((0..len, any::<u8>()), 0..6);
        (changes, 0..=len).prop_map(move |(changes, end)| {
            let mut bytes = good.clone();
            changes.iter().for_each(|&(at, byte)| bytes[at] = byte);
            bytes.truncate(end.max(len / 2));
            bytes
        })
    }

    fn good_npy() -> Vec<u8> {
        npy("<f4", "(2, 1, 2, 3)", &floats((0..12).map(|i| i as f32)))
    }

    fn good_safetensors() -> Vec<u8> {
        let header = concat!(
            r#"{"inputs":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"#,
            r#""labels":{"dtype":"I64","shape":[2],"data_offsets":[24,40]}}"#
        );
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(header.as_bytes());
        bytes.extend_from_slice(&[0; 40]);
        bytes
    }

    fn good_tokenizer() -> Vec<u8> {
        br#"{"version":"1.0","truncation":null,"padding":null,"added_tokens":[],"normalizer":null,
        "pre_tokenizer":{"type":"Whitespace"},"post_processor":null,"decoder":null,
        "model":{"type":"WordLevel","vocab":{"a":0,"b":1,"?":2},"unk_token":"?"}}"#
            .to_vec()
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        #[test]
        fn images_do_not_panic(bytes in damaged(png(6, 5))) {
            let folder = Folder::new("any-image");
            folder.write("a/1.png", &bytes);
            folder.write("a/2.jpg", &bytes);
            try_to_read(&folder.0, SMALL, &DataOptions::default());
        }

        #[test]
        fn arrays_do_not_panic(
            array in damaged(good_npy()),
            tensors in damaged(good_safetensors()),
        ) {
            let folder = Folder::new("any-array");
            folder.write("inputs.npy", &array);
            folder.write("labels.npy", &npy("|u1", "(2,)", &[0, 1]));
            let wanted = Wanted::Features { len: 6 };
            try_to_read(&folder.0, wanted, &DataOptions::default());
            let path = folder.write("both.safetensors", &tensors);
            try_to_read(&path, Wanted::Features { len: 3 }, &DataOptions::default());
        }

        #[test]
        fn tokenizers_and_texts_do_not_panic(
            tokenizer in damaged(good_tokenizer()),
            text in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            let folder = Folder::new("any-text");
            folder.write("a.txt", &text);
            folder.write("b.txt", b"a b a b a b a b a b");
            let tokenizer = Some(folder.write("tokenizer.json", &tokenizer));
            let bad_files = BadFiles::Skip;
            let options = DataOptions { tokenizer, bad_files, ..DataOptions::default() };
            try_to_read(&folder.0, Wanted::Tokens { sequence: 4, vocab: 3 }, &options);
        }
    }

    #[test]
    fn the_good_files_are_good() {
        let folder = Folder::new("good");
        folder.write("a.txt", b"a b c\n");
        folder.write("b.txt", b"b b b b b");
        let tokenizer = Some(folder.write("tokenizer.json", &good_tokenizer()));
        let options = DataOptions { tokenizer, ..DataOptions::default() };
        let wanted = Wanted::Tokens { sequence: 4, vocab: 3 };
        let dataset = Dataset::open(&folder.0, wanted, &options).expect("text");
        let batch = evaluation(dataset, 1, BadFiles::Refuse).read(0).expect("readable");
        assert_eq!(batch.features, Features::Ids(vec![0, 1, 2, 1]));
        let path = folder.write("both.safetensors", &good_safetensors());
        assert_eq!(open(&path, Wanted::Features { len: 3 }).expect("arrays").len(), 2);
    }
}
