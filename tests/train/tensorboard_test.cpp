#include "train/tensorboard.h"

#include <gtest/gtest.h>

#include "tests/train/helpers.h"

namespace bhyt::train {
namespace {

std::string hex(const std::string& bytes) {
  std::string out;
  for (unsigned char c : bytes) out += fmt::format("{:02x}", c);
  return out;
}

TEST(Crc32c, CheckValues) {
  EXPECT_EQ(crc32c("123456789"), 0xE3069283u);
  EXPECT_EQ(crc32c(""), 0u);
  const std::string text = "a text that is cut anywhere";
  for (std::size_t cut = 0; cut <= text.size(); ++cut)
    EXPECT_EQ(crc32c(text.substr(cut), crc32c(text.substr(0, cut))), crc32c(text)) << cut;
}

TEST(TensorBoard, RecordsAreTensorFlowsBytes) {
  EXPECT_EQ(hex(version_record(1.5)), "1800000000000000a37f4b2209000000000000f83f1a0d627261696e2e4576656e743a322a28646c");
  EXPECT_EQ(hex(scalar_record(1.5, 7, {{"train/loss", 2.5f}})),
            "200000000000000029eda95009000000000000f83f10072a130a110a0a747261696e2f6c6f737315000020402508fb34");
}

TEST(TensorBoard, NameAndFirstRecord) {
  const Folder dir;
  EventFile file(dir.path, 0, 1234567890.25);
  EXPECT_TRUE(file.path().filename().string().starts_with("events.out.tfevents.1234567890."));
  EXPECT_EQ(read_text(file.path()), version_record(1234567890.25));
}

TEST(TensorBoard, GoesOnAfterTheStepAsked) {
  const Folder dir;
  {
    EventFile file(dir.path, 0, 1);
    for (int step : {10, 200, 70000}) file.write(2, step, {{"train/loss", 1.f}, {"train/lr", 0.5f}});
  }
  const std::string expected = version_record(1) + scalar_record(2, 10, {{"train/loss", 1.f}, {"train/lr", 0.5f}}) +
                               scalar_record(2, 200, {{"train/loss", 1.f}, {"train/lr", 0.5f}});
  EventFile file(dir.path, 200, 3);
  EXPECT_EQ(read_text(file.path()), expected);
  file.write(4, 201, {{"a", 1.f}});
  EXPECT_EQ(read_text(file.path()), expected + scalar_record(4, 201, {{"a", 1.f}}));
}

TEST(TensorBoard, TornAndDamagedTailsAreCut) {
  const std::string good = version_record(1) + scalar_record(2, 3, {{"a", 1.f}}), next = scalar_record(2, 4, {{"a", 1.f}});
  for (std::size_t kept = 0; kept < next.size(); ++kept) {
    const Folder dir;
    const auto path = EventFile(dir.path, 0, 1).path();
    write_synced(path, good + next.substr(0, kept));
    EXPECT_EQ(read_text(EventFile(dir.path, 100, 9).path()), good) << kept;
  }
  std::string damaged = good + next;
  damaged[good.size() + 20] ^= 1;
  const Folder dir;
  const auto path = EventFile(dir.path, 0, 1).path();
  write_synced(path, damaged);
  EXPECT_EQ(read_text(EventFile(dir.path, 100, 9).path()), good);
}

}  // namespace
}  // namespace bhyt::train
