// The whole page: every run and figure in it, nothing from outside, names harmless, of bounded size.
#include "report/page.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "core/error.h"
#include "report/figure.h"
#include "tests/report/fake_runs.h"
#include "tests/report/helpers.h"

namespace bhyt::report {

namespace fs = std::filesystem;

namespace {

nlohmann::json data_of(const std::string& page) {
  const std::string open = "<script type=\"application/json\" id=\"data\">";
  const std::size_t from = page.find(open) + open.size(), to = page.find("</script>", from);
  return nlohmann::json::parse(page.substr(from, to - from));
}

std::string swatch_of(int run) {
  return fmt::format("<svg class=\"swatch\" viewBox=\"0 0 24 4\" style=\"{}\"><path d=\"M1 2h22\"/></svg>", look_of(run));
}

std::vector<report::Run> three_runs(const fake::Folder& folder) {
  return read_runs(
      {fake::run(folder, "bhyt", {.excess = 0.16}).string(), fake::run(folder, "bhyt-unit", {.excess = 0.1, .seed = 2}).string(),
       fake::run(folder, "rmsnorm", {.method = "rmsnorm", .excess = 0.3, .seed = 3, .lambda = false, .nonfinite = true}).string()});
}

TEST(Page, HasEveryRunAndFigure) {
  const fake::Folder folder;
  const std::vector<report::Run> runs = three_runs(folder);
  const std::string page = render_page(runs);
  for (const char* id : {"loss", "close", "lr", "grad", "speed", "magnitude-start", "magnitude-end", "variance-start", "variance-end",
                         "lambda-attn-0", "lambda-mlp-0", "lambda-attn-1", "lambda-mlp-1"})
    EXPECT_EQ(count(page, fmt::format("<svg class=\"plot\" id=\"{}\"", id)), 1u) << id;
  EXPECT_FALSE(contains(page, "lambda-attn-2"));  // rmsnorm has no λ
  for (std::size_t i = 0; i < runs.size(); ++i) {
    EXPECT_TRUE(contains(page, fmt::format("id=\"run{}\" checked>", i)));
    EXPECT_GE(count(page, fmt::format("class=\"r{} ", i)), 5u) << i;
    EXPECT_TRUE(contains(page, fmt::format("{:.4f}</td>", runs[i].valid.last())));
  }
  EXPECT_TRUE(contains(page, fmt::format("entropy floor {:.4f}", fake::language(folder))));
  EXPECT_TRUE(contains(page, "a1b2c3d"));
  EXPECT_TRUE(contains(page, "4 steps skipped"));
  // Only what differs stands in the table of differences.
  const std::size_t from = page.find("What differs"), to = page.find("Where it ran");
  const std::string differences = page.substr(from, to - from);
  EXPECT_TRUE(contains(differences, "norm.method"));
  EXPECT_FALSE(contains(differences, "train.lr"));
  EXPECT_FALSE(contains(differences, "<th>run.dir"));
}

TEST(Page, TasksHaveFiguresOfTheirOwn) {
  std::vector<report::Run> runs(2);
  for (report::Run& r : runs) r.loss.add(1, 3), r.loss.add(2, 2);
  runs[0].name = "a", runs[1].name = "b";
  EXPECT_FALSE(contains(render_page(runs), "<h2>Tasks</h2>"));
  runs[1].tasks["arc_easy acc_norm"].add(1, 0.25);
  runs[1].tasks["arc_easy acc_norm"].add(2, 0.5);
  const std::string page = render_page(runs);
  EXPECT_TRUE(contains(page, "<h2>Tasks</h2>"));
  EXPECT_TRUE(contains(page, "<h3>arc_easy</h3>"));
}

TEST(Page, NeedsNothingFromOutside) {
  const fake::Folder folder;
  const std::string page = render_page(three_runs(folder));
  for (const char* outside : {"http", "src=", "href=", "@import", "//cdn", "url(/", "fetch("})
    EXPECT_FALSE(contains(page, outside)) << outside;
}

TEST(Page, DataIsJsonWithGapsAsNull) {
  const fake::Folder folder;
  const nlohmann::json data = data_of(render_page(three_runs(folder)));
  EXPECT_EQ(data["runs"], (nlohmann::json{"bhyt", "bhyt-unit", "rmsnorm"}));
  const nlohmann::json& loss = data["figures"][0];
  EXPECT_EQ(loss["id"], "loss");
  ASSERT_EQ(loss["lines"].size(), 6u);
  const auto& rmsnorm = loss["lines"][4];
  EXPECT_EQ(rmsnorm["name"], "train");
  EXPECT_EQ(std::count(rmsnorm["y"].begin(), rmsnorm["y"].end(), nullptr), 2);  // steps 194 and 388 were skipped and logged
  EXPECT_EQ(loss["skipped"][2], (nlohmann::json{97, 194, 291, 388}));
}

TEST(Page, NamesCannotBreakOut) {
  report::Run run;
  run.name = "</script><script>alert(1)</script>\"'&\xff";
  run.loss.add(1, 2);
  run.config_text = "a: </pre><script>alert(2)</script>";
  run.notes = {"<img>"};
  run.about = {{"<i>", "</td>"}};
  report::Run other = run;
  run.config = {{"<u>", "<s>"}};
  const std::string page = render_page({run, other});
  EXPECT_EQ(count(page, "<script"), 2u);  // the data and the program
  EXPECT_EQ(count(page, "</script>"), 2u);
  for (const char* tag : {"<img>", "<u>", "<s>", "\xff"}) EXPECT_FALSE(contains(page, tag)) << tag;
  EXPECT_EQ(data_of(page)["runs"][0], "</script><script>alert(1)</script>\"'&\xef\xbf\xbd");
}

TEST(Page, OddRunsAreStillDrawn) {
  const auto page_of = [](const std::string& metrics) {
    report::Run run;
    run.name = "odd";
    std::istringstream in(metrics);
    read_metrics(in, run);
    return render_page({run});
  };
  for (const char* metrics :
       {"", "{\"step\":1,\"loss\":3}\n", "{\"step\":5,\"valid_loss\":null}\n", "{\"step\":0,\"loss\":0,\"lr\":0,\"grad_norm\":0}\n",
        "{\"step\":1,\"loss\":-5}\n{\"step\":1e29,\"loss\":1e29}\n", "{\"step\":1,\"layers\":{\"norm\":[],\"variance\":[null]}}\n",
        "{\"step\":3,\"loss\":2.5,\"grad_norm\":1e-30}\n{\"step\":4,\"loss\":2.5,\"grad_norm\":1e30}\n"}) {
    const std::string page = page_of(metrics);
    EXPECT_TRUE(contains(page, "<svg class=\"plot\" id=\"loss\"")) << metrics;
    for (const char* bad : {"nan", "inf,", "inf ", "-inf"})
      EXPECT_FALSE(contains(page.substr(page.find("<section>"), page.find("<footer>") - page.find("<section>")), bad)) << bad << metrics;
    EXPECT_NO_THROW(data_of(page));
  }
}

TEST(Page, StaysSmallForManyLongRuns) {
  std::vector<report::Run> runs(10);
  std::mt19937 gen(5);
  std::normal_distribution<double> normal;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    report::Run& r = runs[i];
    r.name = fmt::format("run-{}", i);
    for (int s = 1; s <= 100000; ++s) {
      r.loss.add(s, 3 + std::exp(-s / 5000.0) + 0.1 * normal(gen));
      r.grad_norm.add(s, std::exp(normal(gen)));
      r.lr.add(s, 1e-3 * s / 100000);
      r.tok_s.add(s, 70000 + 1000 * normal(gen));
      if (s % 500 == 0) r.valid.add(s, 3 + 0.1 * normal(gen));
      if (s % 2000 == 0)
        r.layers.push_back({.step = static_cast<double>(s),
                            .norm = std::vector<double>(29, normal(gen)),
                            .variance = std::vector<double>(29, normal(gen)),
                            .lambda_attn = std::vector<double>(28, normal(gen)),
                            .lambda_mlp = std::vector<double>(28, normal(gen))});
      if (s % 10 == 0) r.skipped.push_back(s);
    }
  }
  EXPECT_LT(render_page(runs).size(), 2'200'000u);
}

TEST(Page, MarksTheBestRunOnlyWhereThereIsAVerdict) {
  const fake::Folder folder;
  std::vector<report::Run> runs = three_runs(folder);
  EXPECT_TRUE(contains(render_page(runs), "<tr class=\"best\"><th>" + swatch_of(1) + "bhyt-unit</th>"));
  runs[0].valid_tokens /= 2;
  const std::string page = render_page(runs);
  EXPECT_FALSE(contains(page, "class=\"best\""));
  EXPECT_TRUE(
      contains(page, "No verdict: the runs were validated on different numbers of tokens: 32,768 (bhyt), 65,536 (bhyt-unit and rmsnorm)."));
}

TEST(Page, SaysWhichRunsHaveNoFinalValidationLoss) {
  report::Run a, b;
  a.name = "a", b.name = "b";
  a.loss.add(1, 3);
  b.valid.add(1, 3);
  b.valid.add(2, kNaN);
  const std::string page = render_page({a, b});
  EXPECT_TRUE(contains(page, "data-name=\"validation loss\">not validated</td>"));
  EXPECT_TRUE(contains(page, "data-name=\"validation loss\">not finite</td>"));
}

TEST(Page, ButtonsSayWhatTheyDo) {
  const fake::Folder folder;
  const std::string page = render_page(three_runs(folder));
  EXPECT_TRUE(contains(page, "data-figure=\"loss\" type=\"button\">show log scale</button>"));
  EXPECT_TRUE(contains(page, ">show whole run</button>"));
}

// On a narrow screen a row becomes a block, and nothing but the cell itself says which column it is of.
TEST(Page, EveryCellOfSeveralColumnsHasItsName) {
  const fake::Folder folder;
  std::string page = render_page(three_runs(folder));
  page = page.substr(page.find("<body>"), page.find("<script") - page.find("<body>"));
  EXPECT_GT(count(page, "<td"), 30u);
  EXPECT_EQ(count(page, "<td") - count(page, "<td colspan="), count(page, "data-name="));
}

TEST(Page, IsWrittenWholeOrNotAtAll) {
  const fake::Folder folder;
  report::Run run;
  run.name = "r";
  write_page({run}, (folder / "out.html").string());
  EXPECT_TRUE(fs::is_regular_file(folder / "out.html"));
  EXPECT_THROW(write_page({run}, (folder / "out.html/inside.html").string()), Error);
  fs::create_directories(folder / "taken/inside");
  EXPECT_THROW(write_page({run}, (folder / "taken").string()), Error);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), {}), 2);
}

}  // namespace
}  // namespace bhyt::report
