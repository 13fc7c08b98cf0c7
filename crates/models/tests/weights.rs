//! Weight files: what is written is read back, and what does not belong is named.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use rekindle_graph::StorageId;
use rekindle_models::weights::{WeightsError, load, save, stored};
use rekindle_models::{BertConfig, Model, ModelOptions, build, build_bert};
use rekindle_program::DType;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};

fn options() -> ModelOptions {
    ModelOptions { batch: 2, image_size: 64, sequence: 8, ..ModelOptions::default() }
}

fn small_bert() -> Model {
    let config = BertConfig { vocab: 50, positions: 16, ..BertConfig::new(8, 1, 2) };
    build_bert("small", config, &options()).unwrap()
}

/// A directory of this test alone.
fn directory(test: &str) -> PathBuf {
    let name = format!("rekindle-weights-{test}-{}", std::process::id());
    let directory = std::env::temp_dir().join(name);
    std::fs::create_dir_all(&directory).unwrap();
    directory
}

/// Bytes of a tensor that no other has.
fn initial(model: &Model, id: StorageId) -> Vec<u8> {
    let tensor = model.program.tensor(id);
    let init = model.program.init[id.index()].as_ref().unwrap();
    match tensor.dtype {
        DType::I64 => 7i64.to_le_bytes().repeat(tensor.len()),
        _ => {
            let mut values = vec![0.0; tensor.len()];
            init.fill_f32(5, id.index(), 0, &mut values);
            values.iter().flat_map(|v| v.to_le_bytes()).collect()
        }
    }
}

type Memory = BTreeMap<StorageId, Vec<u8>>;

/// The bytes of every tensor that a file holds.
fn memory(model: &Model) -> Memory {
    let ids = stored(model).into_iter().map(|stored| stored.tensor);
    ids.map(|id| (id, initial(model, id))).collect()
}

fn save_initial(path: &Path, model: &Model) {
    let memory = memory(model);
    // In pieces, as from a store; the last is shorter.
    save(path, model, |id, take| memory[&id].chunks(1000).try_for_each(take)).unwrap();
}

fn read(path: &Path, model: &Model) -> Result<Memory, WeightsError> {
    let mut found = memory(model);
    found.values_mut().for_each(|bytes| bytes.fill(0xa5));
    load(path, model, |id, fill| found.get_mut(&id).unwrap().chunks_mut(1000).try_for_each(fill))?;
    Ok(found)
}

/// The tensors of a file, as plain data that a test can damage.
type Tensors = BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>;

fn tensors_of(path: &Path) -> Tensors {
    let bytes = std::fs::read(path).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let named = tensors.iter().map(|(name, view)| {
        let data = (view.dtype(), view.shape().to_vec(), view.data().to_vec());
        (name.to_owned(), data)
    });
    named.collect()
}

fn write(path: &Path, tensors: &Tensors) {
    let views = tensors.iter().map(|(name, (dtype, shape, data))| {
        (name, TensorView::new(*dtype, shape.clone(), data).unwrap())
    });
    std::fs::write(path, safetensors::serialize(views, None).unwrap()).unwrap();
}

/// Saves `model`, lets `damage` change the file, and returns what loading it says.
fn load_damaged(test: &str, model: &Model, damage: impl Fn(&mut Tensors)) -> WeightsError {
    let directory = directory(test);
    let path = directory.join("model.safetensors");
    save_initial(&path, model);
    let mut tensors = tensors_of(&path);
    damage(&mut tensors);
    write(&path, &tensors);
    let error = read(&path, model).unwrap_err();
    std::fs::remove_dir_all(directory).unwrap();
    error
}

#[test]
fn what_is_saved_is_loaded_again() {
    let directory = directory("round-trip");
    let path = directory.join("model.safetensors");
    for model in [build("resnet18", &options()).unwrap(), small_bert()] {
        save_initial(&path, &model);
        for (id, bytes) in read(&path, &model).unwrap() {
            let name = &model.program.tensor(id).name;
            assert!(bytes == initial(&model, id), "{name}");
        }
        let files: Vec<_> = std::fs::read_dir(&directory).unwrap().collect();
        assert_eq!(files.len(), 1, "only the finished file stays");
    }
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn a_file_is_the_very_bytes_that_the_safetensors_crate_writes() {
    let directory = directory("bytes");
    let (ours, its) = (directory.join("ours"), directory.join("its"));
    for model in [build("resnet18", &options()).unwrap(), small_bert()] {
        save_initial(&ours, &model);
        write(&its, &tensors_of(&ours));
        assert!(std::fs::read(&ours).unwrap() == std::fs::read(&its).unwrap());
    }
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn convolution_weights_are_stored_output_first() {
    let model = build("resnet18", &options()).unwrap();
    let directory = directory("layout");
    let path = directory.join("model.safetensors");
    save_initial(&path, &model);
    let tensors = tensors_of(&path);
    let (_, shape, data) = &tensors["conv1.weight"];
    assert_eq!(shape, &[64, 3, 7, 7]);
    let conv1 = stored(&model).into_iter().find(|s| s.name == "conv1.weight");
    let values = initial(&model, conv1.unwrap().tensor);
    let [o, i, h, w] = [5, 2, 3, 6];
    let at = 4 * (((o * 3 + i) * 7 + h) * 7 + w);
    let own = 4 * (((h * 7 + w) * 3 + i) * 64 + o);
    assert_eq!(data[at..at + 4], values[own..own + 4]);
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn a_missing_tensor_is_named() {
    let error = load_damaged("missing", &small_bert(), |tensors| {
        tensors.remove("cls.predictions.transform.dense.bias");
    });
    assert!(matches!(error, WeightsError::Missing { count: 1, .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("`cls.predictions.transform.dense.bias`"), "{text}");
}

#[test]
fn an_unexpected_tensor_is_named() {
    let error = load_damaged("unexpected", &small_bert(), |tensors| {
        let pooler = (Dtype::F32, vec![1], vec![0; 4]);
        tensors.insert("bert.pooler.dense.bias".into(), pooler);
    });
    assert!(matches!(error, WeightsError::Unexpected { count: 1, .. }), "{error}");
    assert!(error.to_string().contains("`bert.pooler.dense.bias`"), "{error}");
}

#[test]
fn a_misshaped_tensor_is_named_with_both_shapes() {
    let error = load_damaged("shape", &small_bert(), |tensors| {
        let name = "bert.embeddings.position_embeddings.weight";
        tensors.insert(name.into(), (Dtype::F32, vec![8, 8], vec![0; 256]));
    });
    let text = error.to_string();
    assert!(text.contains("has shape [8, 8], but the model needs [16, 8]"), "{text}");
}

#[test]
fn a_tensor_of_another_type_is_named_with_both_types() {
    let error = load_damaged("type", &small_bert(), |tensors| {
        tensors.insert("cls.predictions.bias".into(), (Dtype::F16, vec![50], vec![0; 100]));
    });
    let text = error.to_string();
    assert!(text.contains("`cls.predictions.bias` holds F16, but the model needs F32"), "{text}");
}

#[test]
fn tied_tensors_may_come_under_either_name_or_both_if_they_agree() {
    let model = small_bert();
    let directory = directory("tied");
    let path = directory.join("model.safetensors");
    save_initial(&path, &model);
    let expected = read(&path, &model).unwrap();
    let (first, second) =
        ("bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight");
    let mut tensors = tensors_of(&path);
    let words = tensors[first].clone();
    tensors.insert(second.into(), words);
    write(&path, &tensors);
    assert!(read(&path, &model).unwrap() == expected, "both names");
    tensors.remove(first);
    write(&path, &tensors);
    assert!(read(&path, &model).unwrap() == expected, "the second name");

    let error = load_damaged("tied-differ", &model, |tensors| {
        let mut words = tensors[first].clone();
        words.2[0] ^= 1;
        tensors.insert(second.into(), words);
    });
    assert!(matches!(error, WeightsError::TiedDiffer { .. }), "{error}");
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn a_damaged_file_is_refused() {
    let model = small_bert();
    let directory = directory("damaged");
    let path = directory.join("model.safetensors");
    save_initial(&path, &model);
    let whole = std::fs::read(&path).unwrap();
    // Within the length, within the header, within the values.
    for length in [0, 5, 100, whole.len() - 1] {
        std::fs::write(&path, &whole[..length]).unwrap();
        let error = read(&path, &model).unwrap_err();
        assert!(matches!(error, WeightsError::Format { .. }), "{length}: {error}");
    }
    let mut huge = whole.clone();
    huge[..8].copy_from_slice(&u64::MAX.to_le_bytes());
    std::fs::write(&path, &huge).unwrap();
    assert!(matches!(read(&path, &model), Err(WeightsError::Format { .. })));
    let absent = directory.join("absent.safetensors");
    assert!(matches!(read(&absent, &model), Err(WeightsError::Read { .. })));
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn values_of_a_wrong_size_leave_no_file() {
    let model = small_bert();
    let directory = directory("wrong-values");
    let path = directory.join("model.safetensors");
    let error = save(&path, &model, |_, take| take(&[0; 12])).unwrap_err();
    assert!(matches!(error, WeightsError::Values { found: 12, .. }), "{error}");
    assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 0);
    std::fs::remove_dir_all(directory).unwrap();
}
