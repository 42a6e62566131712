// Records of fine-tuning data: conversations as people keep them, in .json (one array) or .jsonl files, plain or with .gz or .zst. Each is
// recognised by its fields:
//   alpaca    {instruction, input, output, system, history: [[user, answer], …]}
//   ShareGPT  {conversations: [{from: human | gpt | system, value}], system}
//   OpenAI    {messages: [{role: user | assistant | system, content}]}
// Texts are taken as they are: nothing is trimmed or normalized.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "text/chat_template.h"

namespace bhyt {

struct Record {
  std::int64_t index = 0;             // its place in the file, from 0
  std::vector<ChatMessage> messages;  // a system message that is not empty or none, then user and assistant in turn
};

// Why a record is left out; the rest of the file goes on.
enum class Drop : std::uint8_t {
  not_an_object,   // a list, a number, …
  unknown_fields,  // of none of the three forms
  bad_field,       // a field is missing or of the wrong kind
  no_answer,       // output is not a text (an empty one is)
  no_messages,
  odd_messages,  // the last one has no answer
  out_of_turn,   // not user and assistant in turn
};
constexpr std::size_t kDrops = 7;
const char* drop_name(Drop drop);  // "roles out of turn", for people

struct DroppedRecord {
  std::int64_t index = 0, line = 0;  // from 0; from 1
  Drop drop{};
  std::string detail;  // "message 2: expected assistant, found user"
};

// A record as it stands in its file.
struct RecordText {
  std::int64_t index = 0, line = 0;  // from 0; from 1: where it begins
  std::string json;
};

// The records of a file in order. What is held is one stretch of the file and the record that is looked at, never the whole.
class RecordFile {
 public:
  explicit RecordFile(const std::string& path);  // Error where it cannot be read or has another ending
  ~RecordFile();
  RecordFile(const RecordFile&) = delete;
  RecordFile& operator=(const RecordFile&) = delete;

  bool next(RecordText& record);  // false at the end; Error naming file and line where an array is not one
  const std::string& path() const;

  // What a record says. Error naming file and line for malformed JSON. Safe to call from several threads at once.
  std::variant<Record, DroppedRecord> parse(const RecordText& record) const;

 private:
  struct Scan;
  std::unique_ptr<Scan> scan_;
};

bool named_as_records(const std::string& path);  // .json, .jsonl or .ndjson, plain or with .gz or .zst

}  // namespace bhyt
