// Chat templates as other programs keep them: Jinja beside a tokenizer. It is not interpreted, it is recognised by its text.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "text/chat_template.h"

namespace bhyt {

// The row as Jinja with the tokenizer's tokens, as LLaMA-Factory writes it.
std::string chat_jinja(const ChatTemplate& row, const Tokenizer& tokenizer);

// The row that a Jinja text stands for, with its own default system message; nothing for one we do not know.
std::optional<ChatTemplate> recognise_chat_template(std::string_view jinja, const Tokenizer& tokenizer);

// The row that the files beside a tokenizer name (chat_template.jinja, else tokenizer_config.json): nothing where they name none,
// UsageError for one that is not known. `where` is what load_tokenizer took.
std::optional<ChatTemplate> own_chat_template(const std::filesystem::path& where, const Tokenizer& tokenizer, Verify verify = Verify::yes);

}  // namespace bhyt
