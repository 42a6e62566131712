// What the page says of a fine-tuning run: losses by epoch, the checkpoint that was chosen, the data.
#include "report/examples.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "report/figure.h"
#include "report/page.h"
#include "tests/report/fake_runs.h"
#include "tests/report/helpers.h"

namespace bhyt::report {

namespace fs = std::filesystem;

namespace {

// Three epochs of five steps, a line every two: the loss of steps 2n − 1 and 2n is n. The second epoch is the best.
fs::path tuning_run(const fake::Folder& folder, const std::string& name, const std::string& data = "lima.json") {
  const fs::path dir = folder / name;
  std::string metrics = "{\"step\":0,\"valid_loss\":4,\"valid_tokens\":90}\n";
  for (int step = 1; step <= 15; ++step) {
    if (step % 2 == 0 || step == 15) metrics += fmt::format("{{\"step\":{},\"loss\":{}}}\n", step, (step + 1) / 2);
    if (step % 5 == 0) metrics += fmt::format("{{\"step\":{},\"valid_loss\":{},\"valid_tokens\":90}}\n", step, step == 10 ? 2.125 : 3.0);
  }
  fake::write(dir / "metrics.jsonl", metrics);
  fake::write(dir / "resolved.yaml", "train: {steps: 15, lr: 0.002}\n");
  fake::write(dir / "run.json", fmt::format(R"({{"version": "0.1.0", "examples": {{"epoch_steps": 5, "template": "default",
      "train": [{{"file": "/data/{}", "records": 25, "examples": 22, "tokens": 4000, "scored": 1000, "cut": 11, "unscored": 1, "longest": 300,
        "median": 120, "lengths": [{{"from": 1, "to": 128, "count": 20}}, {{"from": 129, "to": 256, "count": 0}},
        {{"from": 257, "to": 384, "count": 2}}], "dropped": [{{"reason": "roles out of turn", "count": 3, "first": []}}]}}],
      "valid": [{{"file": "held-out.json", "records": 4, "examples": 4, "tokens": 80, "scored": 90}}]}}}})",
                                            data));
  for (const char* step : {"10", "15"}) fs::create_directories(dir / fmt::format("checkpoint-{}", step));
  fs::create_directory_symlink("checkpoint-10", dir / "best");
  return dir;
}

TEST(TuningReport, ReadsEpochsAndTheChoice) {
  const fake::Folder folder;
  const report::Run run = read_run(tuning_run(folder, "a"));
  ASSERT_TRUE(run.examples);
  EXPECT_EQ(run.examples->epoch_steps, 5);
  EXPECT_EQ(run.epoch_at(10), 2);
  ASSERT_TRUE(run.chosen);
  EXPECT_EQ(run.chosen->step, 10);
  EXPECT_EQ(run.chosen->loss, 2.125);
  EXPECT_EQ(run.fact("examples"), nullptr);  // no row of the table of machines
  fs::remove(folder / "a/best");
  EXPECT_FALSE(read_run(folder / "a").chosen);
  fs::create_directory_symlink("checkpoint-11", folder / "a/best");  // gone
  EXPECT_FALSE(read_run(folder / "a").chosen);
}

TEST(TuningReport, LossesByEpochWithTheChosenOneRinged) {
  const fake::Folder folder;
  const std::vector<report::Run> runs = {read_run(tuning_run(folder, "a"))};
  const std::vector<Figure> figures = make_figures(runs);
  const Figure& f = figure_named(figures, "epochs");
  ASSERT_EQ(f.lines.size(), 2u);
  EXPECT_EQ(f.lines[0].data.x, (std::vector<double>{1, 2, 3}));
  // Steps 1…5 have losses 1 1 2 2 3, steps 6…10 have 3 4 4 5 5, steps 11…15 have 6 6 7 7 8.
  EXPECT_EQ(f.lines[0].data.y, (std::vector<double>{1.8, 4.2, 6.8}));
  EXPECT_EQ(f.lines[1].data.x, (std::vector<double>{0, 1, 2, 3}));
  EXPECT_EQ(f.lines[1].data.y, (std::vector<double>{4, 3, 2.125, 3}));
  ASSERT_EQ(f.marks.size(), 1u);
  EXPECT_EQ(f.marks[0].x, 2);
  EXPECT_EQ(f.marks[0].y, 2.125);
  EXPECT_TRUE(contains(f.caption, "the checkpoint that was chosen: epoch 2 (step 10), loss 2.1250.")) << f.caption;
  EXPECT_EQ(figure_named(figures, "loss").marks.at(0).x, 10);  // by step there
  const std::string svg = draw_svg(f, 0);
  EXPECT_TRUE(contains(svg, "class=\"r0 mark\"")) << svg;
  EXPECT_TRUE(contains(svg, ">epoch</text>"));
  const std::string page = render_page(runs);
  EXPECT_TRUE(contains(page, "<h2>By epoch</h2>"));
  EXPECT_TRUE(contains(page, "2.1250, epoch 2</td>"));
  EXPECT_TRUE(contains(page, R"("marks":[{"run":0,"x":2,"y":2.125}])"));
}

TEST(TuningReport, ARunInTheMiddleOfAnEpoch) {
  report::Run run;
  run.examples = Examples{.epoch_steps = 4};
  run.loss.add(4, 2);
  run.loss.add(6, 5);
  const std::vector<Figure> figures = make_figures({run});
  const Line& line = figure_named(figures, "epochs").lines.at(0);
  EXPECT_EQ(line.data.x, (std::vector<double>{1, 1.5}));
  EXPECT_EQ(line.data.y, (std::vector<double>{2, 5}));
  EXPECT_TRUE(contains(render_page({run}), "[1,1.5]"));
}

TEST(TuningReport, ShowsTheDataOnceForRunsThatShareIt) {
  const fake::Folder folder;
  std::vector<report::Run> runs = {read_run(tuning_run(folder, "a")), read_run(tuning_run(folder, "b"))};
  std::string html = examples_html(runs);
  const auto count = [&](const std::string& text) {
    std::size_t n = 0;
    for (std::size_t at = html.find(text); at != std::string::npos; at = html.find(text, at + 1)) ++n;
    return n;
  };
  EXPECT_EQ(count("<svg class=\"plot histogram\""), 1u);  // no lengths of the validation data
  EXPECT_EQ(count("<rect class=\"bar\""), 2u);
  EXPECT_TRUE(contains(html, "257 to 384 tokens: 2"));
  for (const char* cell : {">25.0 %</td>", ">11 (50.0 %)</td>", ">3: 3 roles out of turn</td>", ">lima.json (", ">22</td>", ">120</td>"})
    EXPECT_EQ(count(cell), 1u) << cell << html;
  runs.push_back(read_run(tuning_run(folder, "c", "other.json")));
  html = examples_html(runs);
  EXPECT_EQ(count("<svg class=\"plot histogram\""), 2u);
  EXPECT_TRUE(contains(render_page(runs), "<h2>Data</h2>"));
}

TEST(TuningReport, TakesAnythingForData) {
  report::Run run;
  run.name = "odd";
  for (const char* text :
       {"null", "7", "{}", R"({"train": 3})", R"({"train": [null, 4, {"lengths": [null, {"from": 9, "to": 3, "count": 1e300}]}]})",
        R"({"epoch_steps": -1, "train": [{"file": "<marquee>", "lengths": [{"from": 1, "to": 1, "count": 1}]}]})"}) {
    run.examples = read_examples(nlohmann::ordered_json::parse(text));
    const std::string page = render_page({run});
    EXPECT_FALSE(contains(page, "<marquee>")) << text;
    EXPECT_FALSE(contains(page, "<h2>By epoch</h2>")) << text;
    EXPECT_FALSE(contains(page, "=\"nan")) << text;
  }
  EXPECT_FALSE(contains(render_page({report::Run{}}), "<h2>Data</h2>"));
}

}  // namespace
}  // namespace bhyt::report
