//! The command line: a model's name and `key=value` pairs.

use std::collections::BTreeMap;
use std::path::Path;

use rekindle_models::{Model, ModelOptions, build};
use rekindle_onnx::{Loss, Onnx};
use rekindle_program::Optimizer;

use crate::Outcome;

/// What is asked for.
pub(crate) struct Request {
    model: String,
    pub(crate) options: ModelOptions,
    pub(crate) threads: usize,
    pairs: BTreeMap<String, String>,
}

impl Request {
    pub(crate) fn parse(mut words: impl Iterator<Item = String>) -> Outcome<Request> {
        let model = words.next().ok_or("which model?")?;
        let pairs = words
            .map(|word| match word.split_once('=') {
                Some((key, value)) => Ok((key.to_string(), value.to_string())),
                None => Err(format!("`{word}` is not key=value")),
            })
            .collect::<Result<_, _>>()?;
        let mut request = Request { model, options: ModelOptions::default(), threads: 1, pairs };
        request.options = ModelOptions {
            batch: request.get("batch")?.parse()?,
            image_size: request.get("image_size")?.parse()?,
            sequence: request.get("sequence")?.parse()?,
            optimizer: Some(request.optimizer()?),
            dropout: None,
            ..ModelOptions::default()
        };
        request.threads = request.get("threads")?.parse()?;
        Ok(request)
    }

    fn optimizer(&self) -> Outcome<Optimizer> {
        let learning_rate = self.get("learning_rate")?.parse()?;
        match self.get("optimizer")? {
            "sgd" => Ok(Optimizer::sgd(learning_rate)),
            "adam" => Ok(Optimizer::adam(learning_rate)),
            other => Err(format!("there is no optimizer `{other}`").into()),
        }
    }

    /// The value of a key that must be there.
    pub(crate) fn get(&self, key: &str) -> Outcome<&str> {
        Ok(self.pairs.get(key).ok_or(format!("`{key}=` is missing"))?)
    }

    /// The model, trained as `options` says.
    pub(crate) fn build(&self, options: &ModelOptions) -> Outcome<Model> {
        match self.onnx()? {
            Some(onnx) => Ok(onnx.train(self.loss()?, options)?),
            None => Ok(build(&self.model, options)?),
        }
    }

    /// The ONNX file that the model is, if it is one.
    pub(crate) fn onnx(&self) -> Outcome<Option<Onnx>> {
        let path = Path::new(&self.model);
        let is_file = path.extension().is_some_and(|extension| extension == "onnx");
        Ok(is_file.then(|| Onnx::open(path)).transpose()?)
    }

    fn loss(&self) -> Outcome<Loss> {
        let name = self.get("loss")?;
        Ok(Loss::from_name(name).ok_or(format!("there is no loss `{name}`"))?)
    }
}
