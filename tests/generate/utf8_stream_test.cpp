#include "generate/utf8_stream.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace bhyt {
namespace {

TEST(Utf8Stream, NeverTearsASequence) {
  const std::string text = "aé€😀z";
  for (std::size_t piece = 1; piece <= text.size(); ++piece) {
    Utf8Stream stream;
    std::string all;
    for (std::size_t at = 0; at < text.size(); at += piece) {
      const std::string out = stream.push(std::string_view(text).substr(at, piece));
      // What comes out starts with a lead byte and, joined to what follows, never starts inside a sequence.
      if (!out.empty()) {
        EXPECT_NE(static_cast<unsigned char>(out[0]) & 0xC0, 0x80) << piece;
      }
      all += out;
    }
    EXPECT_EQ(all + stream.rest(), text);
  }
}

TEST(Utf8Stream, PassesBrokenBytesThrough) {
  Utf8Stream stream;
  EXPECT_EQ(stream.push("\xff\x80\x80"), "\xff\x80\x80");
  EXPECT_EQ(stream.push("\x80\x80\x80\x80"), "\x80\x80\x80\x80");
  EXPECT_EQ(stream.push("ok\xe2\x82"), "ok");
  EXPECT_EQ(stream.push("x"), "\xe2\x82x");
  EXPECT_EQ(stream.push("\xf0\x9f"), "");
  EXPECT_EQ(stream.rest(), "\xf0\x9f");
  EXPECT_EQ(stream.rest(), "");
}

}  // namespace
}  // namespace bhyt
