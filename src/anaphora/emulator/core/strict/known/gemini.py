"""Fields of a Gemini request. Source: google-genai 3.1.0, models.py (what it puts into a request)
and types.py, seen 2026-11-14. What is sent besides answers with "Unknown name"; both spellings of
a name are taken, as JSON of protocol buffers has it."""

from __future__ import annotations

from . import words

#: generateContent's, on the Gemini API and on Vertex.
TOP = words(
    "cachedContent contents continuationToken generationConfig labels model modelArmorConfig "
    "outputConfig safetySettings serviceTier store systemInstruction toolConfig tools"
)
CONTENT = words("parts role")
PART = words(
    "audioTranscription codeExecutionResult executableCode fileData functionCall "
    "functionResponse inlineData mediaProcessing mediaResolution partMetadata speechMetadata "
    "text thought thoughtSignature toolCall toolResponse videoMetadata"
)
#: types.GenerationConfig, and what the SDK writes there from its own options.
GENERATION_CONFIG = words(
    "audioTimestamp audioTranscriptionConfig candidateCount enableAffectiveDialog "
    "enableEnhancedCivicAnswers frequencyPenalty imageConfig logprobs maxOutputTokens "
    "mediaResolution modelConfig modelSelectionConfig presencePenalty responseFormat "
    "responseJsonSchema responseLogprobs responseMimeType responseModalities responseSchema "
    "routingConfig seed speechConfig stopSequences temperature thinkingConfig topK topP "
    "translationConfig"
)
