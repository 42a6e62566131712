// How fast a tokenizer encodes: bhyt_bench_tokenizer TOKENIZER FILE [REPEATS]. One JSON object on stdout; the best of the repeats, because
// whatever else runs can only slow it down.
#include <fmt/format.h>

#include <chrono>
#include <ctime>

#include "core/check.h"
#include "core/threads.h"
#include "data/input.h"
#include "data/json_text.h"
#include "text/tokenizer.h"

namespace {

using namespace bhyt;

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }
double cpu() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

std::vector<std::string> read_documents(const std::string& path) {
  const InputFile file = find_inputs({path}).at(0);
  const auto stream = open_input(file);
  std::string all;
  std::vector<char> buffer(1 << 20);
  for (std::size_t n = 0; (n = stream->read(buffer.data(), buffer.size())) > 0;) all.append(buffer.data(), n);
  if (file.records == Records::text) return {all};
  std::vector<std::string> texts;
  JsonText json("text");
  for (std::string_view rest = all; !rest.empty();) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    std::string_view text;
    if (json.scan(rest.substr(0, end), text)) texts.emplace_back(text);
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return texts;
}

struct Timed {
  double wall = 1e9, cpu = 1e9;
};

template <class F>
Timed best(int repeats, F&& f) {
  Timed t;
  for (int i = 0; i < repeats; ++i) {
    const double w = now(), c = cpu();
    f();
    t = {std::min(t.wall, now() - w), std::min(t.cpu, cpu() - c)};
  }
  return t;
}

}  // namespace

int main(int argc, char** argv) try {
  check_usage(argc >= 3, "usage: {} TOKENIZER FILE [REPEATS]", argv[0]);
  const int repeats = argc > 3 ? std::stoi(argv[3]) : 10;
  std::unique_ptr<Tokenizer> tokenizer;
  const Timed load = best(1, [&] { tokenizer = load_tokenizer(argv[1]); });
  const std::vector<std::string> texts = read_documents(argv[2]);
  const std::vector<std::string_view> views(texts.begin(), texts.end());
  double bytes = 0;
  for (const std::string& t : texts) bytes += static_cast<double>(t.size());
  std::size_t ids = 0;
  std::string runs;
  const int most = available_cores();
  for (int count = 1; count <= most; count *= 2) {
    Threads threads(count);
    const Timed t = best(repeats, [&] {
      ids = 0;
      for (const auto& i : encode_all(threads, *tokenizer, views, {.special = false})) ids += i.size();
    });
    runs += fmt::format("{}{{\"threads\": {}, \"mb_s\": {:.1f}, \"mb_per_cpu_s\": {:.1f}}}", count > 1 ? ", " : "", count,
                        bytes / t.wall / 1e6, bytes / t.cpu / 1e6);
  }
  fmt::print("{{\"bytes\": {:.0f}, \"ids\": {}, \"load_s\": {:.2f}, \"runs\": [{}]}}\n", bytes, ids, load.wall, runs);
  return 0;
} catch (const std::exception& e) {
  fmt::print(stderr, "error: {}\n", e.what());
  return 1;
}
