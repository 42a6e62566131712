#include "train/tensorboard.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <optional>
namespace bhyt::train {

namespace {

constexpr auto kCrcTable = [] {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    table[i] = i;
    for (int bit = 0; bit < 8; ++bit) table[i] = (table[i] >> 1) ^ (table[i] & 1 ? 0x82F63B78u : 0u);
  }
  return table;
}();

template <class U>
void put_fixed(std::string& out, U value) {
  for (std::size_t i = 0; i < sizeof(U); ++i) out.push_back(static_cast<char>(value >> (8 * i) & 0xFF));
}

void put_varint(std::string& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(value | 0x80));
  out.push_back(static_cast<char>(value));
}

void put_bytes(std::string& out, char tag, std::string_view bytes) {
  out.push_back(tag);
  put_varint(out, bytes.size());
  out += bytes;
}

std::uint32_t masked(std::uint32_t crc) { return (crc >> 15 | crc << 17) + 0xA282EAD8u; }

std::string record(const std::string& event) {
  std::string out;
  put_fixed<std::uint64_t>(out, event.size());
  put_fixed(out, masked(crc32c(out)));
  out += event;
  put_fixed(out, masked(crc32c(event)));
  return out;
}

std::string event_head(double wall_time) {
  std::string event(1, '\x09');
  put_fixed(event, std::bit_cast<std::uint64_t>(wall_time));
  return event;
}

template <class U>
U get_fixed(std::string_view at) {
  U value = 0;
  for (std::size_t i = 0; i < sizeof(U); ++i) value |= static_cast<U>(static_cast<unsigned char>(at[i])) << (8 * i);
  return value;
}

// The step of an event as written above: wall time first, then the step (none in the version record).
std::int64_t step_of(std::string_view event) {
  if (event.size() < 11 || event[9] != '\x10') return 0;
  std::uint64_t step = 0;
  for (std::size_t i = 10, shift = 0; i < event.size() && shift < 64; ++i, shift += 7) {
    step |= static_cast<std::uint64_t>(event[i] & 0x7F) << shift;
    if (!(event[i] & 0x80)) break;
  }
  return static_cast<std::int64_t>(step);
}

// Bytes up to the first record that is torn, damaged or of a later step, or of the last one and holds `tag` where that is to be made again.
std::size_t good_prefix(std::string_view all, std::int64_t last_step, std::string_view tag) {
  std::size_t at = 0;
  while (all.size() - at >= 16) {
    const std::string_view rest = all.substr(at);
    const auto length = get_fixed<std::uint64_t>(rest);
    if (get_fixed<std::uint32_t>(rest.substr(8)) != masked(crc32c(rest.substr(0, 8))) || length > rest.size() - 16) break;
    const std::string_view event = rest.substr(12, length);
    if (get_fixed<std::uint32_t>(rest.substr(12 + length)) != masked(crc32c(event))) break;
    if (step_of(event) > last_step) break;
    if (!tag.empty() && step_of(event) == last_step && event.find(tag) != std::string_view::npos) break;
    at += 16 + length;
  }
  return at;
}

std::optional<fs::path> find_event_file(const fs::path& dir) {
  std::optional<fs::path> found;
  for (const auto& entry : fs::directory_iterator(dir))
    if (entry.path().filename().string().starts_with("events.out.tfevents.") && (!found || entry.path() > *found)) found = entry.path();
  return found;
}

}  // namespace

std::uint32_t crc32c(std::string_view bytes, std::uint32_t before) {
  std::uint32_t c = ~before;
  for (const char b : bytes) c = (c >> 8) ^ kCrcTable[(c ^ static_cast<unsigned char>(b)) & 0xFF];
  return ~c;
}

std::string version_record(double wall_time) {
  std::string event = event_head(wall_time);
  put_bytes(event, '\x1a', "brain.Event:2");
  return record(event);
}

std::string scalar_record(double wall_time, std::int64_t step, const std::vector<Scalar>& scalars) {
  std::string summary;
  for (const auto& [tag, number] : scalars) {
    std::string value;
    put_bytes(value, '\x0a', tag);
    value.push_back('\x15');
    put_fixed(value, std::bit_cast<std::uint32_t>(number));
    put_bytes(summary, '\x0a', value);
  }
  std::string event = event_head(wall_time);
  event.push_back('\x10');
  put_varint(event, static_cast<std::uint64_t>(step));
  put_bytes(event, '\x2a', summary);
  return record(event);
}

EventFile::EventFile(const fs::path& dir, std::int64_t last_step, double now, std::string_view again) {
  if (const auto old = find_event_file(dir)) {
    const std::size_t keep = good_prefix(read_text(*old), last_step, again);
    cut_file(*old, keep);
    file_ = AppendFile(*old);
    if (keep == 0) file_.append(version_record(now));
    return;
  }
  std::array<char, 256> host{};
  if (gethostname(host.data(), host.size() - 1) != 0 || !host[0]) std::strcpy(host.data(), "localhost");
  file_ = AppendFile(dir / fmt::format("events.out.tfevents.{:010d}.{}.{}.0", static_cast<std::int64_t>(now), host.data(), getpid()));
  file_.append(version_record(now));
}

}  // namespace bhyt::train
