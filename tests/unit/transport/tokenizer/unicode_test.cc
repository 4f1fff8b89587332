#include "transport/storage/unicode.h"

#include <gtest/gtest.h>

namespace sgactor::transport {
namespace {

TEST(Unicode, EveryCodePointSurvivesUtf8) {
  for (uint32_t code = 0; code < 0x110000; ++code) {
    if (code >= 0xD800 && code <= 0xDFFF) continue;
    std::string text;
    append_utf8(code, text);
    const CodePoint point = decode_utf8(text, 0);
    ASSERT_EQ(point.code, code);
    ASSERT_EQ(point.length, text.size());
  }
}

TEST(Unicode, IllFormedSequencesAreSingleBytes) {
  for (const std::string text : {"\x80", "\xc0\x80", "\xc1\xbf", "\xe0\x9f\xbf", "\xed\xa0\x80",
                                 "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80", "\xff", "\xe2\x82"}) {
    const CodePoint point = decode_utf8(text, 0);
    EXPECT_EQ(point.length, 1U);
    EXPECT_EQ(point.code, kInvalidByte + static_cast<uint8_t>(text[0]));
    std::string back;
    append_utf8(point.code, back);
    EXPECT_EQ(back, text.substr(0, 1));
  }
}

TEST(Unicode, Classifies) {
  EXPECT_EQ(classify('a'), CharClass::kLetter);
  EXPECT_EQ(classify(0xE9), CharClass::kLetter);
  EXPECT_EQ(classify(0x4E16), CharClass::kLetter);
  EXPECT_EQ(classify(0x10FFFF), CharClass::kOther);
  EXPECT_EQ(classify('7'), CharClass::kNumber);
  EXPECT_EQ(classify(0xBD), CharClass::kNumber);    // one half
  EXPECT_EQ(classify(0x2167), CharClass::kNumber);  // roman eight
  EXPECT_EQ(classify(0xA0), CharClass::kSpace);
  EXPECT_EQ(classify(0x3000), CharClass::kSpace);
  EXPECT_EQ(classify(0x200B), CharClass::kOther);  // zero width space is none
  EXPECT_EQ(classify(0x1C), CharClass::kOther);    // nor are the old separators
  EXPECT_EQ(classify(0x301), CharClass::kOther);
  EXPECT_EQ(classify(kInvalidByte + 0xFF), CharClass::kOther);
}

TEST(Unicode, NfcComposes) {
  const NfcNormalizer nfc;
  EXPECT_EQ(nfc.normalize("plain \xc3\xa9"), "plain \xc3\xa9");
  EXPECT_EQ(nfc.normalize("e\xcc\x81"), "\xc3\xa9");                   // é
  EXPECT_EQ(nfc.normalize("q\xcc\x87\xcc\xa3"), "q\xcc\xa3\xcc\x87");  // marks in order
  EXPECT_EQ(nfc.normalize("\xe2\x84\xab"), "\xc3\x85");                // angstrom to Å
  EXPECT_EQ(nfc.normalize("\xe1\x84\x80\xe1\x85\xa1\xe1\x86\xa8"), "\xea\xb0\x81");  // 각
  EXPECT_EQ(nfc.normalize("\xea\xb0\x81"), "\xea\xb0\x81");
  EXPECT_EQ(nfc.normalize("\xe0\xa5\x98"), "\xe0\xa4\x95\xe0\xa4\xbc");  // excluded from composing
  EXPECT_EQ(nfc.normalize("e\xff\xcc\x81"), "e\xff\xcc\x81");  // a bad byte stands between
}

}  // namespace
}  // namespace sgactor::transport
