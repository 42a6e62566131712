// The report of an evaluation: every model, task and difference in it, names harmless.
#include "report/evaluation.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "report/html.h"
#include "tests/report/helpers.h"

namespace bhyt::report {
namespace {

using Json = nlohmann::ordered_json;

// As bhyt eval gives it for two models, two seeds, two tasks and a text.
Json two_models() {
  std::ifstream file(std::string(BHYT_TEST_DIR) + "/golden/eval/evaluation.json");
  return Json::parse(file);
}

TEST(EvaluationReport, HasAccuraciesPerplexitiesAndDifferences) {
  const std::string html = evaluation_sections(two_models());
  EXPECT_TRUE(contains(html, "<th>piqa (acc_norm)</th>"));
  EXPECT_TRUE(contains(html, R"(<td class="best" data-name="piqa">75.00 ± 35.36</td>)")) << html;  // A's; B has 50
  EXPECT_TRUE(contains(html, R"(<td data-name="boolq">0.00 ± 0.00</td>)")) << html;
  EXPECT_TRUE(contains(html, R"(<td class="main" data-name="bits per byte">0.7213</td>)")) << html;
  EXPECT_TRUE(contains(html, "<h2>B &lt;2&gt; against A</h2>")) << html;
  EXPECT_TRUE(contains(html, R"(data-name="difference">-50.00 ± 50.00</td>)")) << html;
  EXPECT_TRUE(contains(html, "<th>all tasks alike</th>"));
  EXPECT_TRUE(contains(html, "<summary>B &lt;2&gt;, seed 43</summary>"));
  EXPECT_FALSE(contains(html, "<2>"));
}

TEST(EvaluationReport, IsAPage) {
  const std::string page = render_evaluation(two_models());
  const std::string path = ::testing::TempDir() + "/bhyt-evaluation.html";
  write_html(page, path);
  EXPECT_TRUE(is_page(path));
  EXPECT_TRUE(contains(page, "<h1>A, B &lt;2&gt;</h1>"));
  EXPECT_TRUE(contains(page, "B &lt;2&gt; is 37.50 ± 27.95 points below A, every task alike."))
      << page.substr(page.find("verdict\">"), 200);
  EXPECT_TRUE(page.ends_with("</main></body></html>\n"));
  EXPECT_FALSE(contains(page, "http"));
}

TEST(EvaluationReport, OfOneModel) {
  Json one = two_models();
  one.erase("comparisons");
  one.erase("summary");
  one["models"].erase(1);
  const std::string html = evaluation_sections(one);
  EXPECT_FALSE(contains(html, "Accuracy"));
  EXPECT_TRUE(contains(html, "<h2>Every result</h2>"));
}

}  // namespace
}  // namespace bhyt::report
