//! `cargo xtask bench zoo [MODEL…]`: models of the public libraries trained by plan, archived under
//! `bench/runs`.
//!
//! Runs `python/bench/zoo.py` for each model in a process of its own, keeps its lines in a file per
//! model, and writes from all files of the day a table with what holds and what does not. A model
//! that fails is a row with its error. Fails if anything does not hold.

use std::fmt::Write as _;

use anyhow::Result;

use crate::archive::{Archive, Case, Claim, check_names, lines, list, mebibytes};
use crate::python::{self, MODEL_REQUIREMENTS};
use crate::repo::{Repo, output};

/// The models of `python/bench/zoo_models.py`, with their libraries.
const MODELS: [Case; 43] = [
    ("llama", TRANSFORMERS),
    ("qwen2", TRANSFORMERS),
    ("qwen3", TRANSFORMERS),
    ("qwen3-moe", TRANSFORMERS),
    ("mixtral", TRANSFORMERS),
    ("mistral", TRANSFORMERS),
    ("gemma", TRANSFORMERS),
    ("gemma2", TRANSFORMERS),
    ("phi", TRANSFORMERS),
    ("opt", TRANSFORMERS),
    ("gpt2", TRANSFORMERS),
    ("gpt-neox", TRANSFORMERS),
    ("bert", TRANSFORMERS),
    ("roberta", TRANSFORMERS),
    ("distilbert", TRANSFORMERS),
    ("electra", TRANSFORMERS),
    ("modernbert", TRANSFORMERS),
    ("deberta", TRANSFORMERS),
    ("t5", TRANSFORMERS),
    ("bart", TRANSFORMERS),
    ("vit", TRANSFORMERS),
    ("clip", TRANSFORMERS),
    ("whisper", TRANSFORMERS),
    ("wav2vec2", TRANSFORMERS),
    ("mamba", TRANSFORMERS),
    ("segformer", TRANSFORMERS),
    ("timm-convnext", TIMM),
    ("timm-swin", TIMM),
    ("timm-efficientnet", TIMM),
    ("timm-maxvit", TIMM),
    ("timm-mobilenetv4", TIMM),
    ("timm-vit-drop-path", TIMM),
    ("resnet18", TORCHVISION),
    ("resnet50", TORCHVISION),
    ("densenet121", TORCHVISION),
    ("mobilenet-v3", TORCHVISION),
    ("regnet", TORCHVISION),
    ("deeplabv3", TORCHVISION),
    ("faster-rcnn", TORCHVISION),
    ("unet2d-condition", DIFFUSERS),
    ("sd3", DIFFUSERS),
    ("dit", DIFFUSERS),
    ("flux", DIFFUSERS),
];
/// The models of `python/bench/zoo_more_models.py`: each is trained by one plan.
const MORE: [Case; 99] = [
    ("bigbird", TRANSFORMERS),
    ("jamba", TRANSFORMERS),
    ("longformer", TRANSFORMERS),
    ("falcon", TRANSFORMERS),
    ("phi3", TRANSFORMERS),
    ("olmo", TRANSFORMERS),
    ("olmo2", TRANSFORMERS),
    ("olmoe", TRANSFORMERS),
    ("stablelm", TRANSFORMERS),
    ("bloom", TRANSFORMERS),
    ("xlnet", TRANSFORMERS),
    ("albert", TRANSFORMERS),
    ("mpt", TRANSFORMERS),
    ("gpt-bigcode", TRANSFORMERS),
    ("gptj", TRANSFORMERS),
    ("gpt-neo", TRANSFORMERS),
    ("codegen", TRANSFORMERS),
    ("dbrx", TRANSFORMERS),
    ("gemma3", TRANSFORMERS),
    ("granite", TRANSFORMERS),
    ("granite-moe", TRANSFORMERS),
    ("cohere", TRANSFORMERS),
    ("starcoder2", TRANSFORMERS),
    ("glm", TRANSFORMERS),
    ("deepseek-v3", TRANSFORMERS),
    ("mamba2", TRANSFORMERS),
    ("rwkv", TRANSFORMERS),
    ("qwen3-next", TRANSFORMERS),
    ("mpnet", TRANSFORMERS),
    ("funnel", TRANSFORMERS),
    ("convbert", TRANSFORMERS),
    ("fnet", TRANSFORMERS),
    ("nystromformer", TRANSFORMERS),
    ("squeezebert", TRANSFORMERS),
    ("pegasus", TRANSFORMERS),
    ("m2m100", TRANSFORMERS),
    ("led", TRANSFORMERS),
    ("prophetnet", TRANSFORMERS),
    ("layoutlm", TRANSFORMERS),
    ("swinv2", TRANSFORMERS),
    ("beit", TRANSFORMERS),
    ("deit", TRANSFORMERS),
    ("dinov2", TRANSFORMERS),
    ("convnextv2", TRANSFORMERS),
    ("levit", TRANSFORMERS),
    ("mobilevit", TRANSFORMERS),
    ("poolformer", TRANSFORMERS),
    ("pvt", TRANSFORMERS),
    ("focalnet", TRANSFORMERS),
    ("vit-mae", TRANSFORMERS),
    ("videomae", TRANSFORMERS),
    ("dpt", TRANSFORMERS),
    ("blip", TRANSFORMERS),
    ("siglip", TRANSFORMERS),
    ("llava", TRANSFORMERS),
    ("hubert", TRANSFORMERS),
    ("speecht5", TRANSFORMERS),
    ("ast", TRANSFORMERS),
    ("patchtst", TRANSFORMERS),
    ("timm-nfnet", TIMM),
    ("timm-resnest", TIMM),
    ("timm-coatnet", TIMM),
    ("timm-eva", TIMM),
    ("timm-xcit", TIMM),
    ("timm-visformer", TIMM),
    ("timm-ghostnet", TIMM),
    ("timm-repvgg", TIMM),
    ("timm-hrnet", TIMM),
    ("timm-edgenext", TIMM),
    ("timm-fastvit", TIMM),
    ("timm-mixer", TIMM),
    ("timm-dpn", TIMM),
    ("timm-halonet", TIMM),
    ("timm-lambda", TIMM),
    ("timm-volo", TIMM),
    ("timm-rexnet", TIMM),
    ("timm-inception-next", TIMM),
    ("timm-twins", TIMM),
    ("timm-hiera", TIMM),
    ("squeezenet", TORCHVISION),
    ("shufflenet", TORCHVISION),
    ("mnasnet", TORCHVISION),
    ("efficientnet-v2", TORCHVISION),
    ("mobilenet-v2", TORCHVISION),
    ("swin-v2", TORCHVISION),
    ("inception", TORCHVISION),
    ("googlenet", TORCHVISION),
    ("r3d", TORCHVISION),
    ("raft", TORCHVISION),
    ("lraspp", TORCHVISION),
    ("retinanet", TORCHVISION),
    ("fcos", TORCHVISION),
    ("unet2d", DIFFUSERS),
    ("autoencoder-kl", DIFFUSERS),
    ("vq-model", DIFFUSERS),
    ("pixart", DIFFUSERS),
    ("sana", DIFFUSERS),
    ("cogvideox", DIFFUSERS),
    ("controlnet", DIFFUSERS),
];
const TRANSFORMERS: &str = "transformers";
const TIMM: &str = "timm";
const TORCHVISION: &str = "torchvision";
const DIFFUSERS: &str = "diffusers";

/// How the name of the contender with the smallest budget ends.
const SMALLEST: &str = "smallest";

/// The contender that the others' peaks and times are shares of.
const EAGER: &str = "eager";

/// Runs the models that `names` hold, or all.
pub(crate) fn run(repo: &Repo, names: &[String]) -> Result<()> {
    let models = [&MODELS[..], &MORE[..]].concat();
    check_names(names, &models.iter().map(|model| model.0).collect::<Vec<_>>())?;
    let interpreter = python::interpreter(repo)?;
    let path = python::path_with_models(repo, &interpreter)?;
    let train = |model: &Case| {
        let mut command = repo.command(&interpreter);
        command.args(["python/bench/zoo.py", model.0]).env("PYTHONPATH", &path);
        Ok(output(&mut command).unwrap_or_else(|error| failed(&format!("{error:#}"))))
    };
    let archive = Archive::open(repo, "zoo")?;
    let results = archive.cases(&models, names, train, |_, csv| parse(csv))?;
    let claims: Vec<Claim> = results.iter().map(|(model, rows)| claim(model.0, rows)).collect();
    archive.conclude(&summary(&archive, &results, &claims)?, &claims)
}

/// The table of a model whose process ended without one.
fn failed(error: &str) -> String {
    let head = "contender,graphs,budget,peak,predicted,allocated,predicted_allocated,numbers,\
                differing,seconds,first_call,error";
    let error: String = error.chars().map(|c| if ",\n\"".contains(c) { ' ' } else { c }).collect();
    format!("{head}\nprocess{}{error}\n", ",".repeat(head.matches(',').count()))
}

/// A contender of one model.
struct Row {
    contender: String,
    graphs: Option<u64>,
    budget: Option<u64>,
    peak: Option<u64>,
    predicted: Option<u64>,
    allocated: Option<u64>,
    predicted_allocated: Option<u64>,
    differing: Option<u64>,
    seconds: Option<f64>,
    first_call: Option<f64>,
    error: String,
}

impl Row {
    fn is_ours(&self) -> bool {
        self.contender.starts_with("rekindle")
    }

    /// Whether the budget is a share for which there is no plan: the error says the smallest, and
    /// the row of that one shows that it works. Parameters alone may be more than half of a step.
    fn is_refused(&self) -> bool {
        self.error.starts_with("InfeasibleBudget") && !self.contender.ends_with(SMALLEST)
    }

    /// What of the promise does not hold, in words.
    fn broken(&self) -> Option<String> {
        let is_whole = self.graphs == Some(1);
        let what = if !self.error.is_empty() {
            self.error.clone()
        } else if self.differing != Some(0) {
            format!("{} numbers differ", self.differing.unwrap_or_default())
        } else if self.allocated > self.budget {
            "the allocator handed out more than the budget".into()
        } else if is_whole && self.peak != self.predicted {
            "the peak of storages is not the predicted one".into()
        } else if is_whole && self.allocated != self.predicted_allocated {
            "the allocator's peak is not the predicted one".into()
        } else {
            return None;
        };
        Some(format!("{}: {what}", self.contender))
    }
}

fn parse(csv: &str) -> Result<Vec<Row>> {
    let read = |line: crate::archive::Line<'_>| {
        Ok(Row {
            contender: line.get("contender")?,
            graphs: line.optional("graphs")?,
            budget: line.optional("budget")?,
            peak: line.optional("peak")?,
            predicted: line.optional("predicted")?,
            allocated: line.optional("allocated")?,
            predicted_allocated: line.optional("predicted_allocated")?,
            differing: line.optional("differing")?,
            seconds: line.optional("seconds")?,
            first_call: line.optional("first_call")?,
            error: line.get("error")?,
        })
    };
    lines(csv)?.into_iter().map(read).collect()
}

/// That a model trains at every budget as in eager, and where it does not.
fn claim(model: &str, rows: &[Row]) -> Claim {
    let ours: Vec<&Row> = rows.iter().filter(|row| row.is_ours()).collect();
    let process = rows.iter().find(|row| row.contender == "process");
    let (refused, kept): (Vec<&Row>, Vec<&Row>) = ours.iter().partition(|row| row.is_refused());
    let mut broken: Vec<String> = kept.iter().filter_map(|row| row.broken()).collect();
    broken.extend(process.map(|row| row.error.clone()));
    // What a step of several graphs needs is bounded by its budget, and not predicted.
    let is_whole = kept.iter().all(|row| row.graphs == Some(1));
    let peaks = if is_whole { "predicted = measured" } else { "in several graphs the budget held" };
    let (kept, refused) = (kept.len(), refused.len());
    match broken.is_empty() && !ours.is_empty() {
        true => (
            true,
            format!("{model}: eager's bits and {peaks} at {kept} budgets, {refused} refused"),
        ),
        false => (false, format!("{model}: {}", broken.join("; "))),
    }
}

const HEADER: &str = "\
| model | library | graphs | contender | budget, MiB | peak, MiB | with scratch, MiB \
| predicted, MiB | numbers that differ | processor time × eager | first call, s |
|---|---|---|---|---|---|---|---|---|---|---|
";

fn summary(archive: &Archive, results: &[(Case, Vec<Row>)], claims: &[Claim]) -> Result<String> {
    let holding = claims.iter().filter(|claim| claim.0).count();
    let mut text = format!(
        "# Models of the public libraries, trained by plan\n\n\
         `cargo xtask bench zoo` {}. Versions: `python/requirements.txt`, \
         `{MODEL_REQUIREMENTS}`. Each model is made from a small configuration with random \
         weights, in training mode, and has a process of its own. Every loss, gradient, parameter \
         and buffer of two AdamW steps is compared with eager's by its bits. A peak is that of \
         forward and backward, parameters \
         and batch included: of all live storages, and with scratch, by what the allocator handed \
         out; the predicted one has the scratch. `checkpointing` is the library's own switch, \
         `torch budget` PyTorch's `activation_memory_budget`. Where a share is refused, because \
         parameters and their gradients alone take more, the smallest budget is the one that the \
         error names. Times are processor time, since the machine did other work beside this: of \
         a step the median of three, as a multiple of eager's, and of the first call, which \
         captures and plans (effort 2). On steps of milliseconds that is a rough sign. The models \
         from {} on are trained at 0.7 alone, or at the smallest budget where that is refused.\n\n\
         {holding} of {} models hold everything at every budget.\n\n",
        archive.cases_made_on(&[&MODELS[..], &MORE[..]].concat())?,
        MORE[0].0,
        results.len(),
    );
    text += &list(claims);
    text.push('\n');
    text += HEADER;
    for (model, rows) in results {
        let eager = rows.iter().find(|row| row.contender == EAGER).and_then(|row| row.seconds);
        for row in rows {
            writeln!(text, "| {} | {} |{}", model.0, model.1, cells(row, eager))?;
        }
    }
    Ok(text)
}

fn cells(row: &Row, eager: Option<f64>) -> String {
    let size = |bytes: Option<u64>| match bytes {
        Some(bytes) => format!("{:.2}", mebibytes(bytes)),
        None => "–".into(),
    };
    let number = |value: Option<u64>| value.map_or("–".into(), |value| value.to_string());
    let seconds = |value: Option<f64>| value.map_or("–".into(), |value| format!("{value:.2}"));
    if !row.error.is_empty() {
        return format!(" – | {} | {} | | | | | | |", row.contender, row.error);
    }
    format!(
        " {} | {} | {} | {} | {} | {} | {} | {} | {} |",
        number(row.graphs),
        row.contender,
        size(row.budget),
        size(row.peak),
        size(row.allocated),
        size(row.predicted_allocated),
        number(row.differing),
        seconds(row.seconds.zip(eager).map(|(own, eager)| own / eager)),
        seconds(row.first_call),
    )
}

#[cfg(test)]
mod tests {
    use anyhow::Context as _;

    use super::*;

    /// The names of a table of `python/bench`.
    fn names(file: &str, table: &str) -> Result<Vec<String>> {
        let program = Repo::here().read(file)?;
        let (_, table) = program.split_once(table).context("no table of models")?;
        let names =
            table.lines().filter_map(|line| line.strip_prefix("    \"")?.split_once("\": "));
        Ok(names.map(|(name, _)| name.to_owned()).collect())
    }

    #[test]
    fn the_models_are_those_of_the_program() -> Result<()> {
        assert_eq!(names("python/bench/zoo_models.py", "ZOO: ")?, MODELS.map(|model| model.0));
        assert_eq!(names("python/bench/zoo_more_models.py", "MORE: ")?, MORE.map(|model| model.0));
        Ok(())
    }

    #[test]
    fn a_process_that_ends_early_is_a_row() -> Result<()> {
        let rows = parse(&failed("killed, by \"signal\" 9\nbehind"))?;
        let (holds, text) = claim("llama", &rows);
        assert!(!holds);
        assert_eq!(text, "llama: killed  by  signal  9 behind");
        Ok(())
    }
}
