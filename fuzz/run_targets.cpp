#include "fuzz/run_targets.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <string_view>

#include "core/error.h"
#include "data/input.h"
#include "data/json_text.h"
#include "fuzz/require.h"
#include "report/page.h"
#include "report/run.h"
#include "train/checkpointing.h"
#include "train/config.h"
#include "train/metrics.h"

namespace bhyt::fuzz {

namespace {

namespace fs = std::filesystem;
using train::Json;

enum class Verdict { text, no_text, not_json, unsure };

// What a parser that builds the whole tree says of the line.
Verdict by_tree(std::string_view line, std::string& text) {
  // It takes a byte order mark and a zero byte for the line's ends: strict JSON has neither.
  if (line.find('\0') != line.npos || line.starts_with("\xEF\xBB\xBF")) return Verdict::unsure;
  try {
    const auto tree = nlohmann::json::parse(line);
    if (!tree.is_object()) return Verdict::not_json;
    const auto it = tree.find("text");
    if (it == tree.end() || !it->is_string()) return Verdict::no_text;
    text = it->get<std::string>();
    return Verdict::text;
  } catch (const nlohmann::json::parse_error&) {
    return Verdict::not_json;
  } catch (const nlohmann::json::out_of_range&) {
    return Verdict::unsure;  // 1e999 is JSON, though no double
  }
}

// A file without a name: the readers take a path.
class MemoryFile {
 public:
  MemoryFile(const std::uint8_t* data, std::size_t size) : fd_(::memfd_create("fuzz", MFD_CLOEXEC)) {
    require(fd_ >= 0 && ::write(fd_, data, size) == static_cast<ssize_t>(size));
  }
  ~MemoryFile() { ::close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  std::string path() const { return fmt::format("/proc/self/fd/{}", fd_); }

 private:
  int fd_;
};

struct Unpacked {
  std::string bytes;
  bool damaged = false;
};

// At most a mebibyte: a few bytes may unpack to gigabytes.
Unpacked unpack(const InputFile& file, std::size_t piece) {
  constexpr std::size_t kMost = 1 << 20;
  Unpacked out;
  std::string buffer(piece, '\0');
  try {
    const auto stream = open_input(file);
    while (out.bytes.size() < kMost) {
      const std::size_t n = stream->read(buffer.data(), std::min(piece, kMost - out.bytes.size()));
      require(n <= piece);
      if (n == 0) break;
      out.bytes.append(buffer, 0, n);
    }
  } catch (const Error&) {
    out.damaged = true;
  }
  return out;
}

// Whether any frame asks for a window of more than 128 MiB, or for one of a size in four bytes or more: both are allowed, and only memory
// is lost by them.
bool wants_large_window(std::string_view bytes) {
  constexpr std::string_view kMagic = "\x28\xb5\x2f\xfd";
  for (std::size_t at = bytes.find(kMagic); at != bytes.npos && at + 5 < bytes.size(); at = bytes.find(kMagic, at + 1)) {
    const auto descriptor = static_cast<unsigned char>(bytes[at + 4]), window = static_cast<unsigned char>(bytes[at + 5]);
    const bool single_segment = descriptor & 0x20;
    if (single_segment ? descriptor >= 0x80 : window >> 3 > 17) return true;
  }
  return false;
}

// A folder of this process, in memory where there is such a place: the targets sync what they write.
const fs::path& scratch_folder() {
  static const struct Folder {
    fs::path path =
        (fs::is_directory("/dev/shm") ? fs::path("/dev/shm") : fs::temp_directory_path()) / fmt::format("bhyt-fuzz-{}", ::getpid());
    Folder() { fs::create_directories(path); }
    ~Folder() {
      std::error_code ignored;
      fs::remove_all(path, ignored);
    }
  } folder;
  return folder.path;
}

// What a resumed run keeps of its metrics: whole lines from the start, and on a second look all of them.
void resume_metrics(const std::string& text, std::int64_t last_step) {
  train::Progress progress;
  progress.step = last_step;
  const fs::path dir = scratch_folder(), file = dir / "metrics.jsonl";
  write_synced(file, text);
  { const train::Metrics metrics(dir, progress); }
  const std::string kept = read_text(file);
  require(text.starts_with(kept) && (kept.empty() || kept.back() == '\n'));
  { const train::Metrics metrics(dir, progress); }
  require(read_text(file) == kept);
}

}  // namespace

// The scanner and a parser that builds the whole tree agree.
void jsonl_text(const std::uint8_t* data, std::size_t size) {
  const std::string_view line = text_of(data, size);
  JsonText scanner("text");
  std::string_view text;
  const bool found = scanner.scan(line, text);
  std::string expected;
  const Verdict verdict = by_tree(line, expected);
  if (found) require(verdict == Verdict::unsure || (verdict == Verdict::text && text == expected));
  if (found) return;
  require(verdict != Verdict::text || scanner.error().ends_with("less nesting"));
  throw Error(scanner.error());
}

// A config that is taken is written, and read again as the same.
void run_config(const std::uint8_t* data, std::size_t size) {
  const std::string text(text_of(data, size));
  report::Run run;
  report::read_config(text, run);
  const Json tree = parse_yaml(text, "fuzz");
  if (!tree.is_object()) throw Error("not a map of keys");
  const std::string written = write_yaml(train::resolved_tree(train::read_run_config(tree)));
  require(write_yaml(train::resolved_tree(train::read_run_config(parse_yaml(written, "fuzz")))) == written);
}

// The bytes are the same whatever the size of the pieces they are read in.
void compressed_input(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes = text_of(data, size);
  if (bytes.empty()) return;
  const MemoryFile memory(data, size);
  InputFile file{.path = memory.path(), .bytes = size};
  if (bytes[0] == '\x1f') file.compression = Compression::gzip;
  if (bytes[0] == '\x28') file.compression = Compression::zstd;
  if (file.compression == Compression::zstd && wants_large_window(bytes)) throw Error("too large a window");
  const Unpacked large = unpack(file, 1 << 16), small = unpack(file, 13);
  require(large.damaged == small.damaged && (large.damaged || large.bytes == small.bytes));
  if (large.damaged) throw Error("damaged");
}

void trainer_state(const std::uint8_t* data, std::size_t size) {
  const train::Found found{"fuzz", Json::parse(text_of(data, size), nullptr, false)};
  if (found.state.is_discarded()) throw Error("not JSON");
  train::check_mathematics(found, {{"run.dtype", "bf16"}, {"train.lr", 5e-4}}, true);
  const train::Progress p = train::progress_from(found.state, "fuzz");
  const Json again = {{"bhyt", {{"progress", train::to_json(p)}}}, {"log_history", p.log_history}};
  require(train::to_json(train::progress_from(again, "fuzz")) == train::to_json(p));
}

void metrics_lines(const std::uint8_t* data, std::size_t size) {
  const std::string text(text_of(data, size));
  report::Run run;
  std::istringstream in(text);
  report::read_metrics(in, run);
  for (const report::Series* s : {&run.loss, &run.valid, &run.lr, &run.grad_norm, &run.tok_s, &run.tokens, &run.seconds})
    require(s->x.size() == s->y.size() && std::is_sorted(s->x.begin(), s->x.end()));
  require(!report::render_page({run}).empty());
  resume_metrics(text, 20);
}

}  // namespace bhyt::fuzz
