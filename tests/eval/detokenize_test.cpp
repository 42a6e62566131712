// Wikitext pages made readable again as lm-evaluation-harness does it; the expected texts are those of its Python.
#include "eval/detokenize.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

namespace bhyt {
namespace {

TEST(Detokenize, TakesOutTheSpacesThatTheHarnessTakesOut) {
  const std::pair<const char*, const char*> cases[] = {
      {"", ""},
      {"the players ' ( home ) ground", "the players' (home) ground"},
      {"a /' 7/ b /' x/ /' 7 /", "a /'[0-9]/ b /' x/ /' 7 /"},
      {"/' /' 5/", "/'/'[0-9]/"},
      {"it is 1 @,@ 000 @.@ 5 km @-@ wide", "it is 1,000.5 km-wide"},
      {"wait : he ; she . they ! we ? you , all", "wait: he; she. they! we? you, all"},
      {"20 \u00b0 C\n line \n next N 's", "20\u00b0C\nline\nnext 1's"},
      {"= = = = Top = = = = = Mid = = = = Low = =", "==== Top ===== Mid ==== Low =="},
  };
  for (const auto& [page, text] : cases) EXPECT_EQ(detokenize(page), text);
}

TEST(Detokenize, PairsEndAtTheFirstThatCloses) {
  EXPECT_EQ(detokenize("( a ( b ) c ) d )"), "(a ( b) c ) d )");
  EXPECT_EQ(detokenize("open ( and ( more"), "open ( and ( more");
  EXPECT_EQ(detokenize("\" one \" two \" three"), "\"one\" two \" three");
  EXPECT_EQ(detokenize("' a ' b ' c"), "'a' b ' c");
  EXPECT_EQ(detokenize("(   ) [ ] {\n}"), "() [] {}");
}

// \s of Python's re: more than ASCII has, and more than Unicode calls white space, but nothing of no width.
TEST(Detokenize, WhiteSpaceIsPythons) {
  EXPECT_EQ(detokenize("x ( a\n b \u3000) [ y\u2028] {\u00a0z\x1c}"), "x (a\nb) [y] {z}");
  EXPECT_EQ(detokenize("(\u200b a \u200b)"), "(\u200b a \u200b)");
}

// Whatever never closes is looked at once: looking on from each of them would take hours.
TEST(Detokenize, TakesNoLongerForPairsThatNeverClose) {
  const std::string many(4 << 20, '(');
  EXPECT_EQ(detokenize(many), many);
  std::string mixed;
  for (int i = 0; i < 1 << 20; ++i) mixed += "[{(";
  EXPECT_EQ(detokenize(mixed + " )"), mixed + ")");
}

TEST(CountWords, CountsPiecesBetweenWhiteSpaceAndEmptyOnes) {
  EXPECT_EQ(count_words(""), 1);
  EXPECT_EQ(count_words("one"), 1);
  EXPECT_EQ(count_words("one  two"), 2);
  EXPECT_EQ(count_words(" one \n two "), 4);
  EXPECT_EQ(count_words(" "), 2);
  EXPECT_EQ(count_words("a\u3000b\x1f\u2028"
                        "c\u200bd"),
            3);
}

}  // namespace
}  // namespace bhyt
