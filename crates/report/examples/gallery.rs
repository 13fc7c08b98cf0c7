//! One picture of each kind, from made-up numbers: `cargo run -p rekindle-report --example gallery
//! -- FOLDER`.

use std::path::Path;

use rekindle_report::{Area, Axis, Bars, Chart, Columns, Line, Series, Unit};

const GIB: f64 = 1073741824.0;
const BATCHES: [&str; 5] = ["4", "8", "16", "32", "64"];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::args().nth(1).unwrap_or_else(|| "target/gallery".to_string());
    std::fs::create_dir_all(&folder)?;
    let pictures = [
        ("bars", bars()),
        ("stacked_bars", stacked_bars()),
        ("columns", columns()),
        ("lines", lines()),
        ("category_lines", category_lines()),
        ("areas", areas()),
    ];
    for (name, chart) in pictures {
        let path = Path::new(&folder).join(name);
        std::fs::write(path.with_extension("svg"), chart.to_svg())?;
        std::fs::write(path.with_extension("png"), chart.to_png(2.0)?)?;
        println!("{}", path.with_extension("svg").display());
    }
    Ok(())
}

fn batch_size() -> Axis {
    Axis::new("batch size", Unit::Count)
}

fn rank() -> Axis {
    Axis::new("rank", Unit::Count)
}

fn bars() -> Chart {
    let plain = [1.2, 2.0, 3.6, 6.9, f64::NAN].map(|gib| gib * GIB);
    let planned = [0.8, 1.2, 2.0, 3.5, 6.6].map(|gib| gib * GIB);
    let series = vec![
        Bars::new("plain", plain).notes(["", "", "", "", "does not fit"]),
        Bars::new("planned", planned).notes(["−33 %", "−40 %", "−44 %", "−49 %", ""]),
    ];
    let peak = Axis::new("peak memory", Unit::Bytes);
    Chart::over_categories(
        "Peak memory of ResNet-152",
        batch_size(),
        peak,
        BATCHES,
        Series::Bars(series),
    )
    .limit(8.0 * GIB, "limit")
}

fn stacked_bars() -> Chart {
    let scaled = |per_sample: f64| {
        BATCHES.map(|batch| batch.parse::<f64>().unwrap_or(0.0) * per_sample * GIB)
    };
    let series = vec![
        Bars::new("weights", [0.23 * GIB; 5]),
        Bars::new("gradients", [0.23 * GIB; 5]),
        Bars::new("optimizer states", [0.23 * GIB; 5]),
        Bars::new("feature maps", scaled(0.11)),
        Bars::new("other", scaled(0.01)),
    ];
    let memory = Axis::new("memory at the peak", Unit::Bytes);
    Chart::over_categories(
        "What the peak of ResNet-152 is made of",
        batch_size(),
        memory,
        BATCHES,
        Series::Stack(series),
    )
}

fn columns() -> Chart {
    let node =
        |rank: u32| (f64::from(rank), f64::from(rank * 37 % 101) * 2e-5, format!("node {rank}"));
    let groups = vec![
        Columns::new("forward", (0..500).map(node)),
        Columns::new("backward", (500..1400).map(node)),
        Columns::new("optimizer", (1400..1500).map(node)),
    ];
    Chart::columns(
        "Run time of each node of ResNet-152, batch 4",
        rank(),
        Axis::new("run time", Unit::Seconds),
        groups,
    )
    .boundary(0.0, "forward")
    .boundary(500.0, "backward")
    .boundary(1400.0, "optimizer")
}

fn timeline(batch: f64) -> impl Iterator<Item = f64> {
    (0..1500).map(move |rank| {
        let rank = f64::from(rank);
        let filled = if rank < 500.0 { rank / 500.0 } else { 1.0 - (rank - 500.0) / 1000.0 };
        0.1 * GIB * batch * filled
    })
}

fn lines() -> Chart {
    let line = |batch: f64| {
        let points =
            timeline(batch).enumerate().map(|(rank, bytes)| [rank as f64, bytes + 0.6 * GIB]);
        Line::new(format!("batch {batch}"), points)
    };
    let memory = Axis::new("live memory", Unit::Bytes);
    let lines = [4.0, 8.0, 16.0, 32.0, 64.0].map(line).to_vec();
    Chart::lines("Memory of ResNet-152 against rank", rank(), memory, lines)
        .limit(8.0 * GIB, "limit")
        .boundary(500.0, "backward")
}

fn category_lines() -> Chart {
    let points = |seconds: [f64; 5]| {
        (0..5).zip(seconds).map(|(index, y)| [f64::from(index), y]).collect::<Vec<_>>()
    };
    let lines = vec![
        Line::new("plain", points([3.1, 6.0, 11.7, 23.4, f64::NAN])),
        Line::new("planned", points([3.3, 6.4, 12.6, 25.2, 50.1]))
            .notes(["+6.5 %", "+6.7 %", "+7.7 %", "+7.7 %", ""]),
    ];
    let latency = Axis::new("iteration latency", Unit::Seconds);
    Chart::over_categories(
        "Iteration latency of ResNet-152",
        batch_size(),
        latency,
        BATCHES,
        Series::Lines(lines),
    )
}

fn areas() -> Chart {
    let layers = vec![
        Area::new("parameters", vec![0.23 * GIB; 1500]),
        Area::new("optimizer states", vec![0.23 * GIB; 1500]),
        Area::new("activations", timeline(8.0)),
        Area::new("gradients", (0..1500).map(|rank| f64::from((rank - 500).max(0)) * 1e-4 * GIB)),
    ];
    Chart::areas(
        "Live memory of ResNet-152 by role",
        rank(),
        Axis::new("live memory", Unit::Bytes),
        layers,
    )
    .boundary(0.0, "forward")
    .boundary(500.0, "backward")
    .boundary(1460.0, "optimizer")
    .limit(1.5 * GIB, "budget")
}
